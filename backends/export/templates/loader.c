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
    is_read = is_read && fread(memory, ${upper}_BYTES, 1, file) == 1;
    fclose(file);
    if (!is_read)
        return ${upper}_WRONG_FILE;
$members
    return ${upper}_OK;
}
