/* A step, by a table of its calls. For calls of many steps codegen/loop_bodies.py generates another text. */

static inline void body(const loop *p, const rows *own, word step, word *words)
{
    word starts[p->count + 1];
    for (word i = 0; i < p->count; i++)
        starts[i] = start_of(p, i, step);
    starts[p->count] = p->scratch;
    const call *calls = (const call *)p->calls;
    const address *addresses = (const address *)p->addresses;
    for (word i = own->first_address; i < own->last_address; i++)
        words[addresses[i].index] = starts[addresses[i].argument] + addresses[i].offset;
    for (word i = own->first_call; i < own->last_call; i++)
        ((void (*)(const word *))calls[i].function)(words + calls[i].words);
}
