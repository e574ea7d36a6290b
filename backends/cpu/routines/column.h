/* The product of any number of rows and a panel, in tiles of nearly equal numbers of rows; included after panels.h. */

TILES(tile, p->x_row, p->x_column)

static void column(const strides *p, const T *x, const T *y, T *out, word rows, word inner, int adds)
{
    const word tiles = (rows + TILE - 1) / TILE;
    for (word t = 0; t < tiles; t++) {
        const word from = rows * t / tiles, to = rows * (t + 1) / tiles;
        tile(p, x + from * p->x_row, y, out + from * p->out_row, inner, adds, (int)(to - from));
    }
}
