"""Random CRUSH maps as text, and random options to try them with.

Maps are small, and odd: all algorithms, one to four levels, items that are shared or twice in a
bucket, empty buckets, weights that are missing, zero, tiny or huge, numbers that are missing or far
apart, device classes, every kind of step, random tunables and weight sets. They stay within what
crushtool can compile and run:

- a rule never emits buckets: it writes outside its memory;
- a tree bucket whose items all weigh nothing has a power of two of them: it reads outside its memory;
- there are no tree buckets with device classes: it adds up memory it has not set for the shadows;
- items of uniform buckets weigh something: it aborts;
- a device weighs at most 100: it refuses more.
"""

import dataclasses

ALGORITHMS = ("uniform", "list", "tree", "straw", "straw2")
CLASSES = ("ssd", "hdd", "nvme")
LEVELS = ("host", "rack", "room")
PROFILES = {
    "argonaut": (2, 5, 19, 0, 0, 0, 0),
    "bobtail": (0, 0, 50, 1, 0, 0, 0),
    "firefly": (0, 0, 50, 1, 1, 0, 0),
    "hammer": (0, 0, 50, 1, 1, 0, 1),
    "jewel": (0, 0, 50, 1, 1, 1, 1),
}
TUNABLES = (
    "choose_local_tries",
    "choose_local_fallback_tries",
    "choose_total_tries",
    "chooseleaf_descend_once",
    "chooseleaf_vary_r",
    "chooseleaf_stable",
    "straw_calc_version",
)


@dataclasses.dataclass
class Bucket:
    name: str
    kind: str
    number: int
    algorithm: str
    items: list
    lines: list


class RandomMap:
    """One map: `text` is what a compiler reads."""

    def __init__(self, rng):
        self.rng = rng
        self.device_count = rng.choice((1, 3, 6, 12, 24, 40))
        self.spread = rng.random() < 0.2
        self.devices = sorted(
            rng.sample(range(self.device_count * 3), self.device_count)
            if self.spread
            else range(self.device_count)
        )
        self.classed = rng.random() < 0.35
        self.class_of = {}
        self.levels = LEVELS[: rng.randint(0, 3)]
        self.algorithms = (
            ALGORITHMS if rng.random() < 0.5 else (rng.choice(ALGORITHMS),)
        )
        if self.classed:
            # Shadows of uniform buckets are hardly ever made; rules that take them are refused.
            unwanted = ("tree", "uniform") if rng.random() < 0.9 else ("tree",)
            self.algorithms = [name for name in self.algorithms if name not in unwanted] or ["straw2"]
        self.style = rng.choice(("even", "mixed", "odd"))
        self.buckets = []
        self.numbers = self._numbers()
        parts = [self._tunables(), self._devices(), self._types(), self._tree()]
        self.rules = []
        parts += [self._rules(), self._choose_args()]
        self.text = "".join(parts)

    def _numbers(self):
        """Numbers for buckets: dense, or with gaps, or none so that the compiler chooses."""
        number = 0
        while True:
            number -= self.rng.choice((1, 1, 1, 2, 5)) if self.spread else 1
            yield number

    def _tunables(self):
        rng = self.rng
        if rng.random() < 0.15:
            return ""
        values = list(PROFILES[rng.choice(list(PROFILES))])
        if rng.random() < 0.3:
            values = [
                rng.randint(0, 3),
                rng.randint(0, 5),
                rng.choice((0, 1, 3, 10, 50)),
                rng.randint(0, 1),
                rng.randint(0, 4),
                rng.randint(0, 1),
                rng.randint(0, 1),
            ]
        lines = [f"tunable {name} {value}\n" for name, value in zip(TUNABLES, values)]
        if rng.random() < 0.5:
            lines.append(f"tunable allowed_bucket_algs {rng.choice((22, 54, 62))}\n")
        if rng.random() < 0.2:
            lines = rng.sample(lines, rng.randint(1, len(lines)))
        return "".join(lines)

    def _devices(self):
        lines = []
        for osd in self.devices:
            of_class = ""
            if self.classed and self.rng.random() < 0.85:
                self.class_of[osd] = self.rng.choice(CLASSES)
                of_class = f" class {self.class_of[osd]}"
            lines.append(f"device {osd} osd.{osd}{of_class}\n")
        return "".join(lines)

    def _types(self):
        step = self.rng.choice((1, 1, 3))
        self.type_numbers = {"osd": 0}
        for place, name in enumerate((*self.levels, "root")):
            self.type_numbers[name] = 1 + place * step
        return "".join(f"type {n} {name}\n" for name, n in self.type_numbers.items())

    def _weight(self, item):
        rng = self.rng
        if not item.startswith("osd.") and rng.random() < 0.05:
            return rng.choice((900.0, 12000.0, 33000.0))
        if self.style == "even":
            return 1.0
        if self.style == "mixed":
            return rng.choice((0.5, 1.0, 1.81898, 3.63869, 7.27739, 16.0, rng.uniform(0, 20)))
        return rng.choice((0, 0, 0.00001, 0.00002, 0.001, 1.0, 60.0, 100.0, rng.uniform(0, 2)))

    def _tree(self):
        """Buckets level by level, each level holding most of the one before."""
        lines = []
        below = [f"osd.{osd}" for osd in self.devices]
        for level in self.levels:
            groups = self.rng.randint(1, 5)
            made = []
            for place in range(groups):
                items = [item for item in below if self.rng.randrange(groups) == place]
                if self.rng.random() < 0.15:
                    items += self.rng.sample(below, min(len(below), 2))
                made.append(self._bucket(f"{level}{place}", level, items))
            below = [bucket.name for bucket in made]
            if self.rng.random() < 0.1:
                below.append(f"osd.{self.rng.choice(self.devices)}")
            lines += [line for bucket in made for line in bucket.lines]
        roots = self.rng.choice((1, 1, 2))
        for place in range(roots):
            items = list(below)
            if place:
                items = self.rng.sample(below, self.rng.randint(0, len(below)))
            bucket = self._bucket("root" if place == 0 else f"root{place}", "root", items)
            lines += bucket.lines
        return "".join(lines)

    def _bucket(self, name, kind, items):
        rng = self.rng
        self.rng.shuffle(items)
        if rng.random() < 0.04:
            items = []
        if items and rng.random() < 0.04:
            items.append(items[0])
        algorithm = rng.choice(self.algorithms)
        number = next(self.numbers)
        bucket = Bucket(name, kind, number, algorithm, items, [])
        weights = [self._weight(item) for item in items]
        if algorithm == "uniform":
            most = 100.0 if any(item.startswith("osd.") for item in items) else 33000.0
            weights = [min(max(weights[0], 0.001), most) for _ in items]
        unsafe = algorithm == "tree" and len(items) & (len(items) - 1)
        if unsafe and sum(weights) < 1:
            weights[0] = 1.0
        out = bucket.lines
        out.append(f"{kind} {name} {{\n")
        # A root's children must be numbered before it is: numbers that are left out are found later.
        if rng.random() < 0.9:
            out.append(f"\tid {number}\n")
            if self.classed and rng.random() < 0.15:
                # A class that no device has is lost with the shadows that a uniform bucket prevents.
                held = sorted(set(self.class_of.values())) or CLASSES
                known = held if "uniform" in self.algorithms else CLASSES
                out.append(f"\tid {next(self.numbers)} class {rng.choice(known)}\n")
        else:
            bucket.number = None
        out.append(f"\talg {algorithm}\n")
        if rng.random() < 0.9:
            out.append("\thash 0\n")
        positions = list(range(len(items)))
        placed = rng.random() < 0.1
        if placed:
            rng.shuffle(positions)
        for item, weight, position in zip(items, weights, positions):
            line = f"\titem {item}"
            missing = item.startswith("osd.") and algorithm != "uniform" and not unsafe
            if not (missing and rng.random() < 0.03):
                line += f" weight {weight:.{rng.choice((3, 5, 8))}f}" if algorithm != "uniform" else f" weight {weight:.3f}"
            if placed:
                line += f" pos {position}"
            out.append(line + "\n")
        out.append("}\n")
        self.buckets.append(bucket)
        return bucket

    def _take(self):
        rng = self.rng
        if rng.random() < 0.06:
            return f"step take osd.{rng.choice(self.devices)}"
        roots = [bucket for bucket in self.buckets if bucket.kind == "root"]
        bucket = rng.choice(roots if rng.random() < 0.75 else self.buckets)
        known = sorted(set(self.class_of.values()))
        if known and rng.random() < 0.5:
            return f"step take {bucket.name} class {rng.choice(known)}"
        return f"step take {bucket.name}"

    def _set_step(self):
        rng = self.rng
        name, most = rng.choice(
            (
                ("choose_tries", 100),
                ("chooseleaf_tries", 10),
                ("choose_local_tries", 4),
                ("choose_local_fallback_tries", 4),
                ("chooseleaf_vary_r", 4),
                ("chooseleaf_stable", 1),
            )
        )
        return f"step set_{name} {rng.randint(0, most)}"

    def _block(self):
        """take, choose ..., emit: the last choice gives devices."""
        rng = self.rng
        lines = [self._take()]
        kinds = [*self.levels[::-1]]
        for kind in kinds:
            if rng.random() < 0.3:
                mode = rng.choice(("firstn", "indep"))
                lines.append(f"step choose {mode} {rng.choice((0, 1, 2, 3, 10, -1))} type {kind}")
        mode = rng.choice(("firstn", "indep"))
        count = rng.choice((0, 0, 0, 1, 2, 4, -1, -2))
        if rng.random() < 0.5:
            lines.append(f"step choose {mode} {count} type osd")
        else:
            kind = rng.choice((*self.levels, "osd", "root"))
            lines.append(f"step chooseleaf {mode} {count} type {kind}")
        if rng.random() < 0.2:
            lines.insert(rng.randint(0, len(lines)), self._set_step())
        return [*lines, "step emit"]

    def _rules(self):
        rng = self.rng
        number, out = -1, []
        for place in range(rng.randint(1, 5)):
            number += rng.choice((1, 1, 1, 2, 4))
            steps = [self._set_step() for _ in range(rng.choice((0, 0, 1, 2, 3)))]
            for _ in range(rng.choice((1, 1, 1, 2, 3))):
                steps += self._block()
            least = rng.randint(1, 3)
            self.rules.append(number)
            out.append(
                f"rule rule{place} {{\n\t{rng.choice(('id', 'id', 'ruleset'))} {number}\n"
                f"\ttype {rng.choice(('replicated', 'erasure'))}\n"
                f"\tmin_size {least}\n\tmax_size {least + rng.randint(0, 4)}\n"
                + "".join(f"\t{step}\n" for step in steps)
                + "}\n"
            )
        return "".join(out)

    def _choose_args(self):
        rng = self.rng
        if rng.random() < 0.65:
            return ""
        out = []
        for index in sorted(rng.sample((0, 1, 5, 18446744073709551615), rng.randint(1, 2))):
            out.append(f"choose_args {index} {{\n")
            for bucket in self.buckets:
                if bucket.algorithm != "straw2" or bucket.number is None or rng.random() < 0.3:
                    continue
                out.append(f"  {{\n    bucket_id {bucket.number}\n")
                if rng.random() < 0.8:
                    out.append("    weight_set [\n")
                    for _ in range(rng.randint(1, 3)):
                        row = " ".join(f"{rng.choice((0, 0.5, 1, 3.25, 1000)):.5f}" for _ in bucket.items)
                        out.append(f"      [ {row} ]\n")
                    out.append("    ]\n")
                if rng.random() < 0.3:
                    ids = " ".join(str(rng.randint(-5000, 5000)) for _ in bucket.items)
                    out.append(f"    ids [ {ids} ]\n")
                out.append("  }\n")
            out.append("}\n")
        return "# choose_args\n" + "".join(out)


def random_options(rng, made):
    """Options that crushtool --test and `crush map` both know."""
    options = []
    if rng.random() < 0.4:
        options += ["--rule", str(rng.choice(made.rules))]
    elif rng.random() < 0.3:
        options += ["--min-rule", str(rng.randint(0, 2)), "--max-rule", str(rng.randint(0, 12))]
    if rng.random() < 0.7:
        options += ["--num-rep", str(rng.choice((1, 2, 3, 3, 4, 6, 9, 16)))]
    first = rng.choice((0, 0, 1000, 123456789, 2147483500))
    options += ["--min-x", str(first), "--max-x", str(first + rng.choice((0, 7, 40, 100)))]
    if rng.random() < 0.25:
        options += ["--pool-id", str(rng.choice((0, 1, 3, 77, 4294967296 + 5)))]
    if rng.random() < 0.4:
        for _ in range(rng.randint(1, 8)):
            weight = rng.choice(("0", "0", "0.5", "0.1", "0.99999", "1", "2", "0.00001"))
            options += ["--weight", str(rng.randint(0, max(made.devices) + 1)), weight]
    return options

