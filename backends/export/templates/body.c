/* The offsets of values in scratch memory, the last one that of the memory of single calls; and the bytes of all. */
static int64_t layout(${layout_parameters})
$layout

int64_t ${name}_scratch($sizes)
{
    int64_t at[$count];
$check_sizes
    const int64_t size = layout($layout_arguments);
    return size ? size + 64 : 0;
}

int ${name}($parameters)
$body
