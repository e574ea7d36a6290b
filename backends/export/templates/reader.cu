
static int read_values(FILE *file, void *memory)
{
    void *const values = malloc(${upper}_BYTES);
    const int is_read = values && fread(values, ${upper}_BYTES, 1, file) == 1;
    const int is_copied = is_read && cudaMemcpy(memory, values, ${upper}_BYTES, cudaMemcpyHostToDevice) == cudaSuccess;
    free(values);
    return is_copied ? ${upper}_OK : is_read ? ${upper}_DEVICE_ERROR : ${upper}_WRONG_FILE;
}
