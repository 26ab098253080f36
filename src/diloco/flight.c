/* flight.c: a round under way while the program trains: one thread of the layer that makes one round at a time. What it
 * works on is touched by nobody else until it has been landed. Relies on the round alone for what is done. It must not
 * change what the round does not. */
#include "diloco/internal.h"

#include "observe/log.h"
#include "os/os.h"

static void *flight_main(void *arg) {
    rg_diloco_t *d = arg;
    pthread_mutex_lock(&d->lock);
    for (;;) {
        while (!d->stop && d->job != RG_DL_QUEUED) pthread_cond_wait(&d->cond, &d->lock);
        if (d->job != RG_DL_QUEUED) break;
        pthread_mutex_unlock(&d->lock);
        rg_dl_round(&d->round);
        pthread_mutex_lock(&d->lock);
        d->job = RG_DL_DONE;
        pthread_cond_broadcast(&d->cond);
    }
    pthread_mutex_unlock(&d->lock);
    return NULL;
}

rg_status_t rg_dl_thread(rg_diloco_t *d, rg_error_t *err) {
    if (d->has_thread) return RG_OK;
    int rc = rg_os_thread(&d->thread, flight_main, d);
    if (rc) return rg_fail(err, RG_ERR_SYSTEM, rc, "rg_diloco: no thread for what is sent while training goes on");
    d->has_thread = 1;
    return RG_OK;
}

void rg_dl_thread_end(rg_diloco_t *d) {
    RG_OS_STAY;
    if (!d->has_thread) return;
    pthread_mutex_lock(&d->lock);
    d->stop = 1;
    pthread_cond_broadcast(&d->cond);
    pthread_mutex_unlock(&d->lock);
    pthread_join(d->thread, NULL);
    d->has_thread = 0;
}

void rg_dl_launch(rg_diloco_t *d, int here) {
    here |= !d->has_thread;
    if (here) rg_dl_round(&d->round);
    pthread_mutex_lock(&d->lock);
    d->job = here ? RG_DL_DONE : RG_DL_QUEUED;
    pthread_cond_broadcast(&d->cond);
    pthread_mutex_unlock(&d->lock);
}

void rg_dl_land(rg_diloco_t *d) {
    RG_OS_STAY;
    pthread_mutex_lock(&d->lock);
    while (d->job == RG_DL_QUEUED) pthread_cond_wait(&d->cond, &d->lock);
    d->job = RG_DL_IDLE;
    pthread_mutex_unlock(&d->lock);
    d->flight_ns += d->round.took_ns;
}
