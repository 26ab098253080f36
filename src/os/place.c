/* place.c: whether a name is one that a file may take. Relies on stat() alone, so it says what was there a moment ago.
 * It must not open anything: to open a pipe or a device is to do something to it. */
#include "os.h"

#include <sys/stat.h>

const char *rg_os_in_the_way(const char *path) {
    struct stat is, there, stream;
    if (lstat(path, &is) != 0) return NULL;
    int leads = stat(path, &there) == 0, link = S_ISLNK(is.st_mode);
    if (link && !leads) return "a link that leads nowhere";
    if (!leads || !S_ISREG(there.st_mode))
        return leads && S_ISDIR(there.st_mode) ? "a folder" : "a device, a pipe or a socket";
    for (int fd = 0; link && fd <= 2; fd++)
        if (fstat(fd, &stream) == 0 && stream.st_dev == there.st_dev && stream.st_ino == there.st_ino)
            return "a link to a standard stream of this process";
    return NULL;
}
