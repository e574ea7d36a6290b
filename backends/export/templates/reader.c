
static int read_values(FILE *file, void *memory)
{
    return fread(memory, ${upper}_BYTES, 1, file) == 1 ? ${upper}_OK : ${upper}_WRONG_FILE;
}
