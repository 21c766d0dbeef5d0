/* A file of zstd frames, decompressed ahead by a thread of its own, which needs nobody's lock.
 *
 * Law: pieces are the decompressed bytes, in order, whatever damage follows them. A piece stays as it is until the third after it
 * is asked for. Memory: the pieces, what the library needs for a window of 128 MiB at most, and 256 KiB. */
#ifndef WIRELAG_UNZSTD_HPP
#define WIRELAG_UNZSTD_HPP

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "arrays.hpp"

/* What is used of the system's libzstd (1.4 or later, whose interface is stable), looked for when it is first needed: the package
 * of that name for Python keeps its own to itself. */
struct Libzstd {
    struct Input {
        const void *bytes;
        size_t size, used;
    };
    struct Output {
        void *bytes;
        size_t size, filled;
    };

    void *(*create)();
    size_t (*free)(void *);
    size_t (*set)(void *, int, int);
    size_t (*decompress)(void *, Output *, Input *);
    unsigned (*is_error)(size_t);
    const char *(*error_name)(size_t);

    /* nullptr: this machine has none. */
    static const Libzstd *get()
    {
        static Libzstd found = {};
        static const bool complete = found.look_for(dlopen("libzstd.so.1", RTLD_NOW | RTLD_LOCAL));

        return complete ? &found : nullptr;
    }

  private:
    bool look_for(void *library)
    {
        return library && look_up(library, "ZSTD_createDCtx", create) && look_up(library, "ZSTD_freeDCtx", free) &&
               look_up(library, "ZSTD_DCtx_setParameter", set) && look_up(library, "ZSTD_decompressStream", decompress) &&
               look_up(library, "ZSTD_isError", is_error) && look_up(library, "ZSTD_getErrorName", error_name);
    }

    template <typename Function> static bool look_up(void *library, const char *name, Function &function)
    {
        function = reinterpret_cast<Function>(dlsym(library, name));
        return function != nullptr;
    }
};

class Unzstd {
  public:
    /* From a descriptor, which stays the caller's. Pieces have `left` bytes of room before what was decompressed. Without a thread
     * ahead, they are made when they are asked for. */
    Unzstd(int descriptor, size_t left, size_t bytes, size_t most, bool ahead)
        : file(descriptor), room(left), size(bytes), ends(most)
    {
        if (left >= bytes || most <= in_use)
            throw std::invalid_argument("too little memory to decompress into");
        if (!library)
            throw std::runtime_error("this machine has no libzstd");
        memory = lines<u8>(most * bytes);
        context = library->create();
        if (!context)
            throw std::bad_alloc();
        library->set(context, window_log_max, 27);
        if (ahead)
            thread = std::thread([this] {
                while (make())
                    ;
            });
    }

    Unzstd(const Unzstd &) = delete;
    Unzstd &operator=(const Unzstd &) = delete;

    ~Unzstd()
    {
        stop();
        library->free(context);
    }

    /* Decompress no more. */
    void stop()
    {
        {
            std::lock_guard<std::mutex> lock(mutex);
            stopped = true;
        }
        change.notify_all();
        if (thread.joinable())
            thread.join();
    }

    /* The next piece, and where its bytes end; none at the end. */
    std::pair<u8 *, size_t> next()
    {
        bool alone = !thread.joinable();
        std::unique_lock<std::mutex> lock(mutex);

        asked++;
        if (alone && !ended) {
            lock.unlock();
            make();
            lock.lock();
        }
        change.notify_all();
        change.wait(lock, [this] { return asked <= made || ended; });
        if (asked > made)
            return {nullptr, 0};
        size_t place = (asked - 1) % ends.size();

        return {memory.get() + place * size, ends[place]};
    }

    size_t bytes() const
    {
        return size;
    }

    /* Why there is no more, once there is none; empty: the file ended, with a frame. */
    const std::string &problem() const
    {
        return why;
    }

  private:
    static constexpr size_t in_use = 3, read_bytes = 256 << 10, block_header = 3, magic = 4;
    static constexpr int window_log_max = 100; /* ZSTD_d_windowLogMax */

    /* Make a piece, once there is room. Returns whether there is more. */
    bool make()
    {
        size_t place = made % ends.size();
        Libzstd::Output output = {memory.get() + place * size, size, room};
        bool more = is_free() && fill(output);
        std::lock_guard<std::mutex> lock(mutex);

        ends[place] = output.filled;
        made += output.filled > room;
        ended = !more;
        change.notify_all();
        return more;
    }

    /* Wait until nobody uses the memory of the next piece; false: nobody wants it. */
    bool is_free()
    {
        std::unique_lock<std::mutex> lock(mutex);

        change.wait(lock, [this] { return stopped || made < ends.size() || made + in_use <= asked + ends.size(); });
        return !stopped;
    }

    /* Fill a piece. Returns whether there is more. The library gets a block at a time, and the next one when it has told all of it:
     * what a call tells before it fails is lost. */
    bool fill(Libzstd::Output &output)
    {
        while (output.filled < output.size) {
            if (!full && used == got && !read_more()) {
                if (within && why.empty())
                    why = "the zstd data breaks off";
                return false;
            }
            size_t part = wanted > block_header ? wanted - block_header : wanted; /* it asks for the next block's header, too */
            Libzstd::Input input = {compressed.data() + used, full ? 0 : std::min(part, got - used), 0};
            size_t result = library->decompress(context, &output, &input);

            if (library->is_error(result)) {
                why = std::string("the zstd data is damaged (") + library->error_name(result) + ")";
                return false;
            }
            used += input.used;
            within = result != 0;
            wanted = within ? result : magic;
            full = output.filled == output.size;
        }
        return true;
    }

    bool read_more()
    {
        ssize_t count;

        do
            count = read(file, compressed.data(), compressed.size());
        while (count < 0 && errno == EINTR);
        if (count < 0)
            why = std::string("reading failed (") + std::strerror(errno) + ")";
        got = count > 0 ? static_cast<size_t>(count) : 0;
        used = 0;
        return count > 0;
    }

    const Libzstd *const library = Libzstd::get();
    const int file;
    const size_t room, size;
    std::unique_ptr<u8[], Free> memory; /* of all pieces */
    void *context = nullptr;

    /* The thread's. */
    std::vector<u8> compressed = std::vector<u8>(read_bytes);
    size_t used = 0, got = 0; /* bytes of them */
    size_t wanted = magic;    /* bytes that the library asks for */
    bool within = false;      /* a frame */
    bool full = false;        /* the last piece; the library may have more to tell */
    std::string why;          /* the caller's once it has ended */

    std::mutex mutex;
    std::condition_variable change;
    std::vector<size_t> ends;   /* of the bytes of each */
    size_t made = 0, asked = 0; /* pieces */
    bool ended = false, stopped = false;
    std::thread thread;
};

#endif
