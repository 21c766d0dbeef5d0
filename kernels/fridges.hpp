/* Fridges with settings that were checked, and the memory of their slots. */
#ifndef WIRELAG_FRIDGES_HPP
#define WIRELAG_FRIDGES_HPP

#include <cmath>
#include <stdexcept>
#include <vector>

#include "arrays.hpp"

/* wl_by_client, with ranks that are looked up: to find two ports among all services takes longer than the rest of an errand. */
static inline int by_client(u16 src, u16 dst)
{
    static const u8 *const ranks = port_ranks();

    return (ranks[src] > ranks[dst]) | ((ranks[src] == ranks[dst]) & (src >= dst)); /* no branch: it would be a coin */
}

#define WL_SENT_BY_CLIENT by_client
extern "C" {
#include "fridge.h"
}

class Fridges {
  public:
    Fridges(u32 matchers, const std::vector<u64> &slots, const std::vector<u64> &probabilities, u64 seed, u32 variant, u32 stages,
        s64 expiry_ns)
    {
        u64 begin = 0, edge = 0;

        if (matchers > 255 || variant > WL_FRIDGE_EXPIRY)
            throw std::invalid_argument("unknown matchers or variant");
        if (slots.empty() || slots.size() > WL_MOST_FRIDGES || slots.size() != probabilities.size())
            throw std::invalid_argument("there must be 1 to 8 fridges, each with slots and an entry probability");
        if (variant == WL_FRIDGE_EXPIRY &&
            (stages < 1 || stages > WL_MOST_STAGES || slots.size() != 1 || probabilities[0] != WL_CERTAIN || slots[0] % stages))
            throw std::invalid_argument("expiry needs one array that all requests enter, in 1 to 4 stages of equal size");
        meter.matchers = matchers;
        meter.variant = variant;
        meter.stages = stages;
        meter.count = static_cast<u32>(slots.size());
        meter.seed = seed;
        meter.expiry_ns = expiry_ns;
        for (size_t k = 0; k < slots.size(); k++) {
            wl_fridge &fridge = meter.fridge[k];

            fridge.begin = begin;
            fridge.slots = variant == WL_FRIDGE_EXPIRY ? slots[k] / stages : slots[k];
            fridge.probability = probabilities[k];
            if (!is_power_of_two(fridge.slots) || slots[k] > 1ull << 32)
                throw std::invalid_argument("the slots of a fridge (or of a stage) must be a power of two, at most 2^32");
            if (fridge.probability < 1 || fridge.probability > WL_CERTAIN - edge)
                throw std::invalid_argument("entry probabilities must be more than 0, and together at most 1");
            edge += fridge.probability;
            begin += slots[k];
            fridge.edge = edge;
            fridge.decay = decay_of(fridge.probability, fridge.slots);
            fridge.hopeless_from = (WL_HOPELESS + fridge.decay - 1) / fridge.decay;
        }
        for (u32 j = 0; j <= WL_HALVINGS; j++)
            meter.halving[j] = static_cast<u32>(
                std::llround(2147483648.0L * std::exp2(-static_cast<long double>(j) / WL_HALVINGS)));
        slot_count = begin;
        memory = zeroed<wl_slot>(begin);
        meter.slots = memory.get();
    }

    u64 slot_bytes() const
    {
        return slot_count * sizeof(wl_slot);
    }

    wl_fridges meter = {};
    u64 slot_count = 0, went_back = 0, over_long = 0;

  private:
    /* Octaves by which one request reduces a sample's probability, in 2^-48. With long double: a double's 53 bits could not hold 1
     * - p/M. */
    static u64 decay_of(u64 probability, u64 slots)
    {
        long double hit = static_cast<long double>(probability) / 4294967296.0L / static_cast<long double>(slots);

        if (hit >= 1.0L)
            return 1ull << 54;
        return std::max<u64>(1, static_cast<u64>(std::llround(-std::log1p(-hit) / std::log(2.0L) * 281474976710656.0L)));
    }

    static bool is_power_of_two(u64 n)
    {
        return n && !(n & (n - 1));
    }

    std::unique_ptr<wl_slot[], Free> memory;
};

#endif
