/* Launches as they come in, one after another: sanitizers want a process of their own. */
#include <stdio.h>
#include <stdlib.h>

#include <vector>

#include "launch.h"  // after the system's headers, for its names are macros, some of which they use

using namespace cuda_on_cpu;

static void take(void *data, size_t size)
{
    if (size && fread(data, size, 1, stdin) != 1) exit(0);
}

template <class T>
static std::vector<T> take_all(size_t count)
{
    std::vector<T> taken(count);
    take(taken.data(), count * sizeof(T));
    return taken;
}

static void give_text(const char *text)
{
    const uint32_t length = (uint32_t)strlen(text);
    fwrite(&length, sizeof length, 1, stdout);
    fwrite(text, 1, length, stdout);
}

struct Pointer { uint64_t place, buffer, offset; };  // where in the arguments, to which buffer

struct Request {
    uint32_t kernel, buffers, arguments, pointers;
    uint64_t bytes;
    Launch launch;
};

int main()
{
    give_text(cuda_on_cpu_kernels());
    fflush(stdout);
    for (;;) {
        Request request;
        take(&request, sizeof request);
        const auto sizes = take_all<uint64_t>(request.buffers);
        const auto offsets = take_all<uint64_t>(request.arguments);
        const auto pointers = take_all<Pointer>(request.pointers);
        auto values = take_all<unsigned char>(request.bytes);
        std::vector<void *> buffers, given;
        for (uint64_t size : sizes) {
            void *buffer = nullptr;
            if (posix_memalign(&buffer, 256, size)) abort();
            take(buffer, size);
            buffers.push_back(buffer);
        }
        for (const Pointer &pointer : pointers) {
            const unsigned char *const address = (unsigned char *)buffers[pointer.buffer] + pointer.offset;
            memcpy(values.data() + pointer.place, &address, sizeof address);
        }
        for (uint64_t offset : offsets) given.push_back(values.data() + offset);
        const char *const error = cuda_on_cpu_launch(request.kernel, &request.launch, given.data());
        give_text(error ? error : "");
        for (size_t i = 0; i < buffers.size() && !error; i++) fwrite(buffers[i], sizes[i], 1, stdout);
        fflush(stdout);
        if (error) return 0;  // fibres were left as they were: nothing more runs here
        for (void *buffer : buffers) free(buffer);
    }
}
