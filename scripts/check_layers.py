#!/usr/bin/env python3
"""Checks every #include: layers, rooms, libraries; and the tables of docs/architecture.md, which are written from here.

    scripts/check_layers.py            names each offence as `file:line: what is wrong`; exit 1 where there is one
    scripts/check_layers.py --write    writes the tables of docs/architecture.md anew from the data below
    --root DIR                         another tree than this one
"""
import argparse
import os
import re
import sys

# Layer: (the layers it may include, what it must not know). None: everything. The order is that of the document.
LAYERS = {
    "src/core": ([], "everything else"),
    "kernels": (["src/core"], "files, models, methods"),
    "src/ranks": (["src/core", "kernels"], "files, models, methods"),
    "formats": (["src/core"], "devices, models, methods"),
    "src/model": (["src/core", "formats"], "devices, methods"),
    "src/text": (["src/core", "formats"], "models, devices"),
    "src/run": (["src/core", "src/model", "src/ranks", "kernels", "formats"], "methods"),
    "src/calib": (["src/core", "src/model", "src/ranks", "src/run", "kernels"], "methods, packings"),
    "src/quant": (["src/core", "src/model", "src/text", "src/ranks", "src/run", "src/calib", "kernels", "formats"],
                  "tools"),
    "src/eval": (["src/core", "src/model", "src/text", "src/ranks", "src/run", "kernels", "formats"], "methods"),
    "tools": (None, "arithmetic"),
    "tests": (None, ""),
}

# Rooms of a layer: the rooms whose headers each may include, besides its own. A layer that is named here may hold
# sources in these rooms only; "." stands for its own folder.
#
# A room may include only rooms that stand before it in the table, but for one inside the other.
#
# The order inside kernels/: what runs work (exec), how numbers are rounded to a grid (grids) and the CPU's loops
# (cpu) know nobody; which kernel takes which rows (choice) knows the numbers of a GPU (exec/gpu_traits.h). device/
# holds what several kernels share on the GPU and launches through exec; codes come to it as grids lays them. The
# small ops of a model (model) come next, because attention and products take their input through a rotation, a norm
# or a gated activation. kv/ has the codes of keys and values that are more than a line, for attention to append and
# to read; kivi/ has a cache of another form, with attention over it, which takes its arguments from attention.
# products/ holds the dense products and the parts that both families of packed ones (marlin, bytes) are made of. The
# families do not know each other; the ops over several linears (gated_gemms, normed_gemms) in products/ know the
# families, so that headers are included both ways, and the check for circles keeps single files apart. decode joins
# all of them in one launch. Nobody includes decode, statistics or quantize.
ROOMS = {
    "kernels": {
        "exec": [],
        "grids": [],
        "cpu": [],
        "choice": ["exec"],
        "device": ["exec", "grids"],
        "model": ["exec", "cpu", "device"],
        "kv": ["exec", "cpu", "device"],
        "attention": ["exec", "choice", "cpu", "device", "model", "kv"],
        "kivi": ["exec", "cpu", "device", "attention"],
        "shared_keys": ["exec", "cpu", "device"],
        "recurrent": ["exec", "cpu", "device"],
        "streams": ["exec", "cpu", "device"],
        "products": ["exec", "choice", "cpu", "device", "grids", "model", "products/bytes"],
        "products/marlin": ["exec", "choice", "cpu", "device", "products"],
        "products/blocks": ["exec", "grids", "cpu"],
        "products/bytes": ["exec", "choice", "cpu", "device", "grids", "model", "products"],
        "statistics": ["exec", "cpu", "device"],
        "quantize": ["exec", "cpu", "device", "grids", "products"],
        "decode": ["exec", "device", "grids", "model", "kv", "attention", "products", "products/marlin",
                   "products/bytes"],
    },
}

STANDARD = set("""
algorithm any array atomic barrier bit bitset cassert cctype cerrno cfenv cfloat charconv chrono cinttypes climits
cmath compare complex concepts condition_variable coroutine csetjmp csignal cstdarg cstddef cstdint cstdio cstdlib
cstring ctime deque exception execution filesystem forward_list fstream functional future initializer_list iomanip ios
iosfwd iostream istream iterator latch limits list locale map memory memory_resource mutex new numbers numeric
optional ostream queue random ranges ratio regex scoped_allocator semaphore set shared_mutex source_location span
sstream stack stdexcept stop_token streambuf string string_view syncstream system_error thread tuple type_traits
typeindex typeinfo unordered_map unordered_set utility valarray variant vector version
""".split())
POSIX = re.compile(
    r"(arpa/inet|cpuid|dirent|dlfcn|fcntl|glob|malloc|netinet/in|poll|pthread|sched|signal|termios|unistd|"
    r"sys/(eventfd|file|mman|resource|socket|stat|syscall|time|types|uio|un|wait))\.h$")

# (header, the files that may include it, what to say of others). A header that fits no line here is not known.
CUDA_HOME = r"kernels/.*(_cuda\.cu|\.cuh)$|kernels/exec/(exec_cuda|cuda_libraries)\.h$"
CUDA_WORDS = "CUDA headers belong in *_cuda.cu and *.cuh of kernels/ and in what kernels/exec/ has for them"
LIBRARIES = [
    (r"(cuda|cublas|cusolver)\w*\.h$|cuda/|cooperative_groups|nvtx3/", CUDA_HOME, CUDA_WORDS),
    (r"nlohmann/", r".*\.cpp$|tests/|formats/guarded_json\.h$", "JSON belongs in .cpp files"),
    (r"fmt/", r".*", ""),
    (r"CLI/", r"tools/cli/", "the command line belongs in tools/cli"),
    (r"gtest/", r"tests/", "tests belong in tests/"),
    (r"xxhash\.h$", r"src/core/xxh3/define_hash_calls\.h$", "digests belong in src/core/digest.h"),
    (r"(zlib|zstd)\.h$", r"src/text/files/packed_text\.cpp$|tests/",
     "packed texts belong in src/text/files/packed_text.h"),
    (r"httplib\.h$", r"tools/http/", "HTTP belongs in tools/http/http_module.cpp"),
    (r"openssl/", r"src/core/files/sha256\.cpp$", "SHA-256 belongs in src/core/files/sha256.h"),
    (r"mpi\.h$", r"src/ranks/mpi_module\.cpp$", "MPI belongs in src/ranks/mpi_module.cpp"),
    (r"nccl\.h$", r"src/ranks/nccl_module\.cpp$", "NCCL belongs in src/ranks/nccl_module.cpp"),
    (r"pcre2\.h$", r"src/core/text/regex\.cpp$", "regular expressions belong in src/core/text/regex.h"),
    (r"utf8proc\.h$", r"src/text/", "Unicode tables belong in src/text"),
    # The encoders of blocks are bytes, which kernels/ does not know.
    (r"(cblas|immintrin)\.h$", r"kernels/.*(_cpu\.cpp|\.h)$|formats/gguf/four_bit_vectors\.h$",
     "BLAS and vector instructions belong in kernels/, those of GGUF's encoders in formats/gguf/four_bit_vectors.h"),
]

DOCUMENT = "docs/architecture.md"
SOURCES = (".h", ".cpp", ".cu", ".cuh")


def layer_of(path):
    return next((layer for layer in LAYERS if path.startswith(layer + "/")), None)


def room_of(path, layer):
    """The room of a file in a layer that has rooms: the innermost folder that the table names, else its own folder."""
    folder = os.path.dirname(path)[len(layer) + 1:]
    inner = folder
    while inner and inner not in ROOMS[layer]:
        inner = os.path.dirname(inner)
    return inner or folder or "."


def includes_of(text):
    """(line number, header, whether in angle brackets) of each #include."""
    for number, line in enumerate(text.split("\n"), 1):
        m = re.match(r'\s*#\s*include\s+(["<])([^">]+)[">]', line)
        if m:
            yield number, m.group(2), m.group(1) == "<"


def library_complaint(path, header):
    """What is wrong with <header> in `path`, or None."""
    if header in STANDARD or POSIX.match(header):
        return None
    for pattern, homes, words in LIBRARIES:
        if re.match(pattern, header):
            return None if re.match(homes, path) else f"{words} (<{header}>)"
    return f"<{header}> is neither a standard nor a known library's header (the table is in scripts/check_layers.py)"


def tree_complaint(root, path, header):
    """What is wrong with "header" in `path`, or None."""
    if not os.path.isfile(os.path.join(root, header)):
        return f'"{header}" does not exist; includes are relative to the root of the tree'
    layer, target = layer_of(path), layer_of(header)
    if target is None:
        return f'"{header}" is in no layer'
    if target != layer:
        allowed = LAYERS[layer][0]
        fits = target != "tests" if allowed is None else target in allowed
        return None if fits else f"{layer} may not include {target} ({header})"
    if layer not in ROOMS:
        return None
    room, other = room_of(path, layer), room_of(header, layer)
    if room == other or other in ROOMS[layer].get(room, []):
        return None
    return f"the room {layer}/{room} may not include {layer}/{other} ({header})"


def circle_complaints(edges):
    """Headers that include each other in a circle; #pragma once would hide it."""
    state, path = {}, []

    def visit(file):
        state[file] = "open"
        path.append(file)
        for header in edges.get(file, []):
            if state.get(header) == "open":
                circle = path[path.index(header):] + [header]
                yield f"{header}:1: includes in a circle: {' -> '.join(circle)}"
            elif header not in state:
                yield from visit(header)
        path.pop()
        state[file] = "done"

    for file in sorted(edges):
        if file not in state:
            yield from visit(file)


def sources_of(root):
    for top in ("src", "kernels", "formats", "tools", "tests"):
        for folder, _, files in os.walk(os.path.join(root, top)):
            for name in files:
                if name.endswith(SOURCES):
                    yield os.path.relpath(os.path.join(folder, name), root)


def complaints(root):
    edges = {}
    for path in sorted(sources_of(root)):
        layer = layer_of(path)
        if layer is None:
            yield f"{path}:1: in no layer; the table is in scripts/check_layers.py"
            continue
        if layer in ROOMS and room_of(path, layer) not in ROOMS[layer]:
            yield f"{path}:1: {layer}/{room_of(path, layer)} is not a room; the table is in scripts/check_layers.py"
            continue
        with open(os.path.join(root, path), encoding="utf-8") as f:
            found = list(includes_of(f.read()))
        edges[path] = [header for _, header, angle in found if not angle]
        for number, header, angle in found:
            wrong = library_complaint(path, header) if angle else tree_complaint(root, path, header)
            if wrong:
                yield f"{path}:{number}: {wrong}"
    yield from circle_complaints(edges)


def order_complaints():
    """Entries of the tables above that go against the order of their rows."""
    tables = {"layers": {layer: allowed for layer, (allowed, _) in LAYERS.items()}, **ROOMS}
    for table, rows in tables.items():
        before = []
        for row, allowed in rows.items():
            for other in allowed or []:
                nested = (row + "/").startswith(other + "/") or (other + "/").startswith(row + "/")
                if other not in before and not nested:
                    yield f"scripts/check_layers.py: {table}: {row} may include {other}, which does not stand before it"
            before.append(row)


def layers_table():
    rows = ["| layer (CMake target) | may include | must not know |", "|---|---|---|"]
    for layer, (allowed, unknown) in LAYERS.items():
        if layer == "tests":
            continue
        name = f"`{layer}` (fewbit_{layer.split('/')[-1]})" if layer != "tools" else "`tools/`"
        what = "everything" if allowed is None else ", ".join(a.split("/")[-1] for a in allowed) or "std"
        rows.append(f"| {name} | {what} | {unknown} |")
    return rows


def rooms_table():
    rows = ["| room | may include, besides its own |", "|---|---|"]
    for layer, rooms in ROOMS.items():
        for room, allowed in rooms.items():
            name = layer if room == "." else f"{layer}/{room}"
            rows.append(f"| `{name}` | {', '.join(allowed) or 'no other room'} |")
    return rows


def written(text):
    """The document with its tables written anew; an Error names a marker that is missing."""
    for marker, rows in (("layers", layers_table()), ("rooms", rooms_table())):
        begin, end = f"<!-- {marker}: begin -->", f"<!-- {marker}: end -->"
        if text.count(begin) != 1 or text.count(end) != 1:
            raise ValueError(f"{DOCUMENT} needs the lines {begin} and {end} once each")
        head, rest = text.split(begin)
        text = head + begin + "\n" + "\n".join(rows) + "\n" + end + rest.split(end)[1]
    return text


def document_complaints(root, write):
    path = os.path.join(root, DOCUMENT)
    try:
        with open(path, encoding="utf-8") as f:
            text = f.read()
        right = written(text)
    except (OSError, ValueError) as e:
        yield f"check_layers: {e}"
        return
    if write and right != text:
        with open(path, "w", encoding="utf-8") as f:
            f.write(right)
    elif right != text:
        yield f"{DOCUMENT}: its tables are not those of the check's data; run scripts/check_layers.py --write"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help=f"write the tables of {DOCUMENT}")
    parser.add_argument("--root", default=os.path.dirname(os.path.dirname(os.path.abspath(__file__))),
                        help="the tree to check (default: this one)")
    arguments = parser.parse_args()
    bad = [*order_complaints(), *document_complaints(arguments.root, arguments.write), *complaints(arguments.root)]
    print("\n".join(bad), end="\n" if bad else "")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
