#include "system.h"

enum { DATA = 0x00, ROOM = 0x04, CYCLES = 0x08, BYTES_READ = 0x0C, BYTES_WRITTEN = 0x10, DETACH = 0x14, END = 0x18 };

static volatile uint32_t *peripheral(uint32_t offset)
{
    return (volatile uint32_t *)(uintptr_t)(0x90000000u + offset);
}

void put_text(const char *text)
{
    for (; *text; text++) {
        while (!*peripheral(ROOM))
            ;
        *peripheral(DATA) = (unsigned char)*text;
    }
}

void put_number(uint32_t value, uint32_t width)
{
    char text[33];
    uint32_t at = sizeof text - 1;

    text[at] = 0;
    do {
        text[--at] = (char)('0' + value % 10);
        value /= 10;
    } while (value);
    while (at > sizeof text - 1 - width)
        text[--at] = ' ';
    put_text(text + at);
}

void put_words(const void *values, uint32_t count)
{
    const unsigned char *bytes = (const unsigned char *)values;
    char text[10];
    uint32_t at;

    text[0] = ' ';
    text[9] = 0;
    for (; count--; bytes += 4) {
        for (at = 0; at < 8; at++)
            text[1 + at] = "0123456789abcdef"[bytes[3 - at / 2] >> (at & 1 ? 0 : 4) & 15];
        put_text(text);
    }
}

uint32_t cycles(void)
{
    return *peripheral(CYCLES);
}

uint32_t bus_bytes(void)
{
    return *peripheral(BYTES_READ) + *peripheral(BYTES_WRITTEN);
}

void detach(uint32_t yes)
{
    *peripheral(DETACH) = yes;
}

void end(uint32_t status)
{
    *peripheral(END) = status;
    for (;;)
        ;
}

/* Allows instructions on control and status registers, which -march=rv32im lacks; gcc selects its library by that name. */
#define CSR(text) ".option push\n.option arch, +zicsr\n" text "\n.option pop"

/* VexRiscv's registers of 32 interrupts: 0xBC0 enables, 0xFC0 shows the enabled interrupts that are pending. */
void wait_for_core(void *context)
{
    uint32_t round, pending = 0;

    (void)context;
    __asm__ volatile(CSR("csrw 0xBC0, %0") : : "r"(1));
    for (round = 0; round < 100 && !pending; round++)
        __asm__ volatile(CSR("csrr %0, 0xFC0") : "=r"(pending));
}

void empty_cache(void *context)
{
    (void)context;
    __asm__ volatile(".word 0x500F" : : : "memory"); /* VexRiscv: invalidates the data cache, which is write-through */
}
