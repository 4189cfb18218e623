"""Job ids that count how often they are looked at."""


class CountedId(int):
    """A number that counts each time that it is compared or hashed; ``looks`` is of all of them."""

    looks = 0

    def __eq__(self, other):
        CountedId.looks += 1
        return int(self) == other

    def __hash__(self):
        CountedId.looks += 1
        return hash(int(self))


def looks_at(count, call):
    """Looks at ``count`` ids, from 0 on, that ``call`` gets in a list."""
    job_ids = [CountedId(number) for number in range(count)]
    CountedId.looks = 0
    call(job_ids)
    return CountedId.looks
