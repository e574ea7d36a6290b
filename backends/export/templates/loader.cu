/* The header of the file, which tells what is where. */
static const unsigned char file_header[$length] = {
$header
};

int ${name}_load(const char *path, void *memory, ${name}_tensors *tensors)
{
    unsigned char header[sizeof file_header];
    if (!path || !memory || !tensors)
        return ${upper}_NULL_POINTER;
    FILE *const file = fopen(path, "rb");
    if (!file)
        return ${upper}_WRONG_FILE;
    int is_read = fread(header, sizeof header, 1, file) == 1 && !memcmp(header, file_header, sizeof header);
    void *const values = malloc(${upper}_BYTES);
    is_read = is_read && values && fread(values, ${upper}_BYTES, 1, file) == 1;
    fclose(file);
    const int is_copied = is_read && cudaMemcpy(memory, values, ${upper}_BYTES, cudaMemcpyHostToDevice) == cudaSuccess;
    free(values);
    if (!is_copied)
        return is_read ? ${upper}_DEVICE_ERROR : ${upper}_WRONG_FILE;
$members
    return ${upper}_OK;
}
