/* A part of a file, read by several threads beside other work. */
#ifndef WIRELAG_FILE_READ_HPP
#define WIRELAG_FILE_READ_HPP

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <stdexcept>
#include <vector>

#include "crew.hpp"
#include "frames.hpp"

class FileRead : public Work {
  public:
    /* A file's bytes from `from` on, into into[first:last]. */
    FileRead(int descriptor, const Memory &memory, size_t first, size_t last, u64 from)
        : file(descriptor), into(memory), start(first), stop(last), offset(from)
    {
        if (start > stop || stop > into.shape(0))
            throw std::invalid_argument("the part to read lies outside the buffer");
        got = std::vector<size_t>((stop - start + each - 1) / each);
    }

    bool piece(unsigned) override
    {
        size_t number = next++;

        if (number >= got.size())
            return false;
        size_t from = start + number * each, to = std::min(from + each, stop);

        while (from + got[number] < to) {
            size_t done = got[number];
            ssize_t n = pread(file, into.data() + from + done, to - from - done, static_cast<off_t>(offset + from - start + done));

            if (n < 0 && errno == EINTR)
                continue;
            if (n < 0)
                problem = errno;
            if (n <= 0)
                break;
            got[number] += static_cast<size_t>(n);
        }
        return true;
    }

    /* How many bytes came, once all is done; what comes after a gap is not wanted. */
    size_t bytes() const
    {
        size_t sum = 0;

        for (size_t one : got) {
            sum += one;
            if (one < each)
                break;
        }
        return sum;
    }

    /* Why none came; 0: the file ended. */
    int error() const
    {
        return problem;
    }

  private:
    static constexpr size_t each = 256 << 10; /* bytes of a piece */

    int file;
    Memory into;
    size_t start, stop;
    u64 offset;
    std::vector<size_t> got; /* of each piece, which is one thread's */
    std::atomic<size_t> next = 0;
    std::atomic<int> problem = 0;
};

#endif
