// Adder and multiplier of a cell, by the binary32 unit of the host: ftz(rne(a + b)) and ftz(rne(x * w)).
//
// The unit treats subnormal operands as zeros and flushes subnormal results, each to a zero of the same sign. Units differ in the
// results just below the least normal number, which rounding can raise to it. No sum of two normal numbers and no product of two
// bfloat16 numbers is such a result: a sum is a multiple of the least subnormal, and a product has 16 significant bits.
#ifndef TPU_NATIVE_CELLS
#define TPU_NATIVE_CELLS
#include <cstdint>
#include <cstring>
#if defined(__x86_64__)
#include <xmmintrin.h>
static inline void tpu_native_mode() { _mm_setcsr(_mm_getcsr() | 0x8040); }  // FTZ and DAZ
#elif defined(__aarch64__)
static inline void tpu_native_mode() {
    uint64_t control;
    __asm__ volatile("mrs %0, fpcr" : "=r"(control));
    __asm__ volatile("msr fpcr, %0" : : "r"(control | 1u << 24));  // FZ, for operands and results
}
#else
#error "native cells need a host with x86-64 or ARM64"
#endif

// Sets the mode of the thread that loads the program, before main. Verilator evaluates the model in this thread.
static const struct TpuNativeMode {
    TpuNativeMode() { tpu_native_mode(); }
} tpu_native_mode_set;

static inline float tpu_native_number(uint32_t bits) {
    float number;
    std::memcpy(&number, &bits, 4);
    return number;
}

static inline uint32_t tpu_native_bits(float number) {
    uint32_t bits;
    std::memcpy(&bits, &number, 4);
    return (bits & 0x7FFFFFFFu) > 0x7F800000u ? 0x7FC00000u : bits;
}

static inline uint32_t tpu_native_add(uint32_t a, uint32_t b) {
    return tpu_native_bits(tpu_native_number(a) + tpu_native_number(b));
}

static inline uint32_t tpu_native_multiply(uint32_t x, uint32_t w) {
    return tpu_native_bits(tpu_native_number(x << 16) * tpu_native_number(w << 16));
}
#endif
