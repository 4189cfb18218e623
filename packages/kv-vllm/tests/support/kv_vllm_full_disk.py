"""A disk that gets full while something is written to it."""

import errno


class Full:
    """A file on a disk that gets full in the middle of a line."""

    def __init__(self, file, room):
        self.file, self.room = file, room

    @property
    def closed(self):
        return self.file.closed

    def write(self, data):
        if not self.room:
            raise OSError(errno.ENOSPC, "disk full")
        written = self.file.write(data[: self.room])
        self.room -= written
        return written

    def tell(self):
        return self.file.tell()

    def truncate(self, size):
        self.file.truncate(size)

    def close(self):
        self.file.close()
