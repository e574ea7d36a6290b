/* The header of the file, which tells what is where. */
static const unsigned char file_header[$length] = {
$header
};
$reader
int ${name}_load(const char *path, void *memory, ${name}_tensors *tensors)
{
    unsigned char header[sizeof file_header];
    if (!path || !memory || !tensors)
        return ${upper}_NULL_POINTER;
    FILE *const file = fopen(path, "rb");
    if (!file)
        return ${upper}_WRONG_FILE;
    int status = ${upper}_WRONG_FILE;
    if (fread(header, sizeof header, 1, file) == 1 && !memcmp(header, file_header, sizeof header))
        status = read_values(file, memory);
    fclose(file);
    if (status != ${upper}_OK)
        return status;
$members
    return ${upper}_OK;
}
