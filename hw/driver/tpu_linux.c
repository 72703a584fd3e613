#define _DEFAULT_SOURCE

#include "tpu_linux.h"

#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE 4096u
#define WAIT_MS 100 /* the status is polled after this time, even if the interrupt is lost */

static uint32_t read_register(void *context, uint32_t offset)
{
    return ((volatile const uint32_t *)((tpu_linux *)context)->registers)[offset / 4];
}

static void write_register(void *context, uint32_t offset, uint32_t value)
{
    ((volatile uint32_t *)((tpu_linux *)context)->registers)[offset / 4] = value;
}

/* UIO masks the interrupt after it has arrived, until 1 is written. The core keeps `irq` high until the driver has seen the end of
   the run, so an interrupt before the write is not lost. A device without an interrupt refuses the write: only time passes. */
static void wait_for_interrupt(void *context)
{
    const int file = ((tpu_linux *)context)->file;
    struct pollfd one = {0, POLLIN, 0};
    uint32_t count = 1;

    one.fd = file;
    if (write(file, &count, sizeof count) != (ssize_t)sizeof count
        || (poll(&one, 1, WAIT_MS) > 0 && read(file, &count, sizeof count) < 0))
        usleep(1000 * WAIT_MS);
}

/* The mapping is not cached: only the order of accesses matters. */
static void order_accesses(void *context)
{
    (void)context;
    __sync_synchronize();
}

static int read_number(const char *maps, int map, const char *name, uint64_t *value)
{
    char path[512];
    FILE *file;
    int found;

    if (snprintf(path, sizeof path, "%s/map%d/%s", maps, map, name) >= (int)sizeof path || !(file = fopen(path, "r")))
        return 0;
    found = fscanf(file, "%" SCNx64, value);
    fclose(file);
    return found == 1;
}

/* UIO chooses the map by the offset, in pages of the system. */
static void *mapped(int file, int map, size_t bytes)
{
    return mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, (off_t)map * sysconf(_SC_PAGESIZE));
}

const char *tpu_linux_open(tpu_linux *own, const char *device, const char *maps)
{
    uint64_t registers, memory;
    void *found;

    if (!read_number(maps, 0, "size", &registers) || !read_number(maps, 1, "size", &memory)
        || !read_number(maps, 1, "addr", &own->address))
        return "no sizes and address of map0 and map1: the device tree node needs two `reg`, registers and memory";
    if (registers < 512 || registers > SIZE_MAX || !memory || memory > SIZE_MAX)
        return "map0 or map1 has a wrong size: registers take 512 bytes, and the memory must fit the program's addresses";
    own->register_bytes = (size_t)registers;
    own->bytes = (size_t)memory;
    own->used = 0;
    own->file = open(device, O_RDWR | O_SYNC);
    if (own->file < 0)
        return "cannot open the UIO device";
    own->registers = mapped(own->file, 0, own->register_bytes);
    found = own->registers == MAP_FAILED ? MAP_FAILED : mapped(own->file, 1, own->bytes);
    if (found == MAP_FAILED) {
        if (own->registers != MAP_FAILED)
            munmap(own->registers, own->register_bytes);
        close(own->file);
        return "cannot map registers and memory";
    }
    own->memory = (unsigned char *)found;
    own->port.context = own;
    own->port.read = read_register;
    own->port.write = write_register;
    own->port.wait = wait_for_interrupt;
    own->port.fence = order_accesses;
    return 0;
}

size_t tpu_linux_take(tpu_linux *own, size_t bytes)
{
    const size_t first = own->used;

    if (bytes > own->bytes - first)
        return own->bytes;
    bytes += (PAGE - bytes % PAGE) % PAGE;
    own->used = bytes > own->bytes - first ? own->bytes : first + bytes;
    return first;
}

void tpu_linux_close(tpu_linux *own)
{
    munmap(own->memory, own->bytes);
    munmap(own->registers, own->register_bytes);
    close(own->file);
}
