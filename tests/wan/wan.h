/* wan.h: what the files of the emulator of distant networks share. wan.c carries packets between namespaces, settings.c
 * reads what each way is to be like, check.c holds the one against the other with the clock. They rely on Linux (tun
 * devices, namespaces) and root. Nothing here belongs to the library, and nothing of the library is used. */
#ifndef RG_TEST_WAN_H
#define RG_TEST_WAN_H

#include <stddef.h>
#include <stdint.h>

#define WAN_NODES 16
#define WAN_NET 0x0a4f0000u /* 10.79.0.0; node i (from 1) has the last byte i */
#define WAN_QUEUE_MS 250    /* of a queue that nobody gave a length: what its rate carries in that time */
#define WAN_LINE 512        /* longest line of settings */

/* One place where packets wait for their turn. */
typedef struct wan_queue {
    double rate;      /* bytes per nanosecond; 0: no limit, and nobody waits */
    uint64_t room;    /* bytes; 0: WAN_QUEUE_MS of the rate */
    uint64_t free_at; /* when what is in it will have left */
} wan_queue_t;

typedef struct wan_node {
    int fd;
    wan_queue_t up, down;
} wan_node_t;

/* One direction of a pair. */
typedef struct wan_pair {
    wan_queue_t line;
    uint64_t delay_ns, jitter_ns, last_due;
    double loss; /* percent */
    uint64_t packets, bytes, lost, dropped;
} wan_pair_t;

extern wan_node_t wan_node[WAN_NODES];
extern wan_pair_t wan_pair[WAN_NODES][WAN_NODES];
extern int wan_nodes;

/* Takes one line of settings; 1 when it was understood, else 0 with why in text. */
int wan_set(const char *line, char *text, size_t cap);
extern const char wan_settings_help[];

int wan_main(int argc, char **argv); /* the emulator */
int wan_check(void);                 /* all checks; prints their number last; what main() is to return */

#endif
