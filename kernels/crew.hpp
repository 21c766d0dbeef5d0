/* A few threads that do the parts of one task at a time. They begin with the first task: whoever listens gives up privileges
 * before, and threads keep theirs. */
#ifndef WIRELAG_CREW_HPP
#define WIRELAG_CREW_HPP

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <vector>

/* Work in pieces, for threads that have nothing better to do. */
class Work {
  public:
    virtual ~Work() = default;

    /* Do a piece that no thread has taken yet; returns whether there was one. */
    virtual bool piece(unsigned thread) = 0;
};

/* Three works at most, of which the first comes first. */
struct Meanwhile {
    Work *first, *then, *last;

    bool piece(unsigned thread) const
    {
        return (first && first->piece(thread)) || (then && then->piece(thread)) || (last && last->piece(thread));
    }
};

class Crew {
  public:
    /* One of the threads is the caller's. */
    explicit Crew(unsigned threads) : threads(threads)
    {
        if (!threads)
            throw std::invalid_argument("a crew has at least one thread");
    }

    Crew(const Crew &) = delete;
    Crew &operator=(const Crew &) = delete;

    ~Crew()
    {
        {
            std::lock_guard<std::mutex> lock(mutex);
            leaving = true;
            round++;
        }
        begins.notify_all();
        for (std::thread &member : members)
            member.join();
    }

    unsigned size() const
    {
        return threads;
    }

    /* Call task(0) here and task(1), ... in the other threads; returns when all have ended. A task must not throw. */
    void run(const std::function<void(unsigned)> &given)
    {
        if (threads == 1)
            return given(0);
        for (unsigned part = static_cast<unsigned>(members.size()) + 1; part < threads; part++)
            members.emplace_back([this, part] { work(part); });
        {
            std::lock_guard<std::mutex> lock(mutex);
            task = &given;
            at_work = members.size();
            round++;
        }
        begins.notify_all();
        given(0);
        for (int i = 0; at_work && i < patience; i++)
            pause();
        std::unique_lock<std::mutex> lock(mutex);
        ended.wait(lock, [this] { return at_work == 0; });
    }

    /* Do all pieces; if there is none, which is usual, no thread need wake. */
    void run(Work &work)
    {
        if (!work.piece(0))
            return;
        run([&work](unsigned thread) {
            while (work.piece(thread))
                ;
        });
    }

    /* A moment of waiting for another member of the crew, after `waited` of them. */
    static void wait(int waited)
    {
        if (waited < patience)
            pause();
        else
            std::this_thread::yield();
    }

  private:
    static constexpr int patience = 4000; /* looks before a thread sleeps: waking it takes longer than most waits */

    static void pause()
    {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
    }

    void work(unsigned part)
    {
        for (unsigned done = 0;; done++) {
            for (int i = 0; round == done && i < patience; i++)
                pause();
            {
                std::unique_lock<std::mutex> lock(mutex);
                begins.wait(lock, [this, done] { return round != done; });
                if (leaving)
                    return;
            }
            (*task)(part);
            std::lock_guard<std::mutex> lock(mutex);
            if (--at_work == 0)
                ended.notify_one();
        }
    }

    const unsigned threads;
    std::vector<std::thread> members;
    std::mutex mutex;
    std::condition_variable begins, ended;
    const std::function<void(unsigned)> *task = nullptr;
    std::atomic<size_t> at_work = 0;
    std::atomic<unsigned> round = 0;
    bool leaving = false;
};

#endif
