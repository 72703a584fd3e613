// Parts of benches in C++: random numbers from a seed, and the words of a file of jobs.

#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>

static uint64_t state = 1;

static uint32_t draw() {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return uint32_t(state >> 20);
}

static bool chance(uint32_t of_256) { return (draw() & 255) < of_256; }

struct File {
    FILE* file;
    bool ended() {
        const int first = std::fgetc(file);
        return first == EOF || (std::ungetc(first, file), false);
    }
    uint32_t word() {
        uint32_t value = 0;
        if (std::fread(&value, 4, 1, file) != 1) std::fprintf(stderr, "the jobs end too early\n"), std::exit(1);
        return value;
    }
    uint64_t wide() {
        const uint64_t low = word();
        return low | uint64_t(word()) << 32;
    }
};
