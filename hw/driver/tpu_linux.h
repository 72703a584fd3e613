/* The driver's port on Linux, without a kernel module of its own: UIO maps the registers and a reserved memory into a program.

   The device tree has the core as "generic-uio" with two `reg`: registers, then the reserved memory. The kernel, started with
   uio_pdrv_genirq.of_id=generic-uio, then makes /dev/uioN. `tpu package` writes the node. */

#ifndef TPU_LINUX_H
#define TPU_LINUX_H

#include <stddef.h>

#include "tpu.h"

typedef struct tpu_linux {
    tpu_port port;         /* for tpu_open; `wait` sleeps until the interrupt, or for 100 ms */
    unsigned char *memory; /* the reserved memory as the CPU sees it, not cached */
    uint64_t address;      /* of its first byte on the core's bus */
    size_t bytes;
    void *registers; /* these four are the port's own */
    size_t register_bytes;
    int file;
    size_t used;
} tpu_linux; /* must stay where it is while it is open */

/* Opens a UIO device, such as "/dev/uio0". `maps` is its folder of sizes and addresses, "/sys/class/uio/uio0/maps". Returns 0, or
   what failed, as a text for a message; errno says why. Nothing stays open then. */
const char *tpu_linux_open(tpu_linux *linux_port, const char *device, const char *maps);

/* Takes `bytes` of the reserved memory for a region, aligned to 4096 bytes. Returns the offset in `memory`, or the member `bytes`
   if there is no room. 0 bytes always fit. */
size_t tpu_linux_take(tpu_linux *linux_port, size_t bytes);

/* Unmaps and closes all. The core must be at rest: tpu_recover comes first. */
void tpu_linux_close(tpu_linux *linux_port);

#endif
