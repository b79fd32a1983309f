"""Virtual environments for other people's tools, one each, with frozen versions, in build/interop.

The tools share one environment with PyTorch, because it is large: a .pth file makes it visible to theirs. torch is the wheel for
CPUs where PyTorch's own index answers and the one of PyPI otherwise, which runs without a GPU as well.
"""
import glob
import os
import shutil
import subprocess
import sys
import tarfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
CACHE = os.environ.get("FEWBIT_INTEROP_CACHE", os.path.join(ROOT, "build", "interop"))

# Name: packages, further arguments of pip. "torch" is below all others.
TOOLS = {
    "torch": (["torch==2.14.1", "numpy==2.4.6", "safetensors==0.8.0"], ["--extra-index-url", "https://download.pytorch.org/whl/cpu"]),
    "transformers": (["transformers==5.23.0", "compressed-tensors==0.20.0", "accelerate==1.15.0", "gguf==0.19.0"], []),
    # The version that vLLM 0.33 asks for.
    "compressed-tensors-0.17": (["transformers==5.23.0", "compressed-tensors==0.17.0", "accelerate==1.15.0"], []),
    "gptqmodel": (["gptqmodel==7.7.0", "optimum==2.3.0", "transformers==5.23.0"], []),
    # Its own requirements are of 2024 and would not let the others be; its packing functions need torch only.
    "autoawq": (["autoawq==0.2.9", "transformers==5.23.0", "accelerate==1.15.0"], ["--no-deps"]),
    # What quantizes on the fly, and adapters: scripts/interop/foreign.
    "foreign": (["bitsandbytes==0.50.2", "peft==0.21.2", "hqq==0.2.8.post1", "torchao==0.18.0", "transformers==5.23.0", "accelerate==1.15.0"], []),
    "gguf": (["gguf==0.19.0", "numpy==2.4.6"], ["--only-binary", ":all:"]),
    # Other people's quantizers: scripts/interop/quality_peers.
    "llm-compressor": (["llmcompressor==0.14.0.1"], []),
    "auto-round": (["auto-round==0.16.1"], []),
    # Clients of a server: scripts/interop/serve_clients. Of transformers they need the tokenizers, not PyTorch.
    "serve-clients": (["openai==3.57.0", "lm_eval[api]==0.4.13", "transformers==5.24.0", "llm==0.36"], []),
}
# llama.cpp's source travels in the source distribution of its Python binding. It is built here, because the wheels that can be
# had have no quantizer.
LLAMA_CPP = "llama_cpp_python==0.3.36"
# Not for this very processor: a virtual machine may say that it has AMX and end a program that uses it.
PORTABLE = "-DGGML_NATIVE=OFF"
ALONE = {"torch", "gguf", "serve-clients"}  # do not see the environment of torch


class Unavailable(RuntimeError):
    """A tool that cannot be installed here; the text is the reason."""


def run(command, what):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = [l for l in (done.stderr or done.stdout).strip().splitlines() if l.strip()] or ["no message"]
        error = next((l for l in lines if l.startswith("ERROR")), lines[-1])
        raise Unavailable(f"{what}: {error.strip()[:200]}")
    return done.stdout


def site_packages(folder):
    return os.path.join(folder, "lib", f"python{sys.version_info[0]}.{sys.version_info[1]}", "site-packages")


def python_of(name):
    """The interpreter of the tool's environment, which is made on the first call. Raises Unavailable."""
    packages, arguments = TOOLS[name]
    folder = os.path.join(CACHE, f"venv-{name}")
    python, stamp = os.path.join(folder, "bin", "python"), os.path.join(folder, "installed.txt")
    wanted = "\n".join(packages)
    if os.path.exists(stamp) and open(stamp, encoding="utf-8").read() == wanted:
        return python
    if name not in ALONE:
        python_of("torch")
    print(f"installing {', '.join(packages)} into {os.path.relpath(folder)}", file=sys.stderr, flush=True)
    run([sys.executable, "-m", "venv", "--clear", folder], name)
    if name not in ALONE:
        with open(os.path.join(site_packages(folder), "torch.pth"), "w", encoding="utf-8") as f:
            f.write(site_packages(os.path.join(CACHE, "venv-torch")) + "\n")
    if "--no-deps" in arguments:  # sdists that import what they need to build
        run([python, "-m", "pip", "install", "-q", "setuptools", "wheel"], name)
        run([python, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", packages[0]], name)
        run([python, "-m", "pip", "install", "-q", *packages[1:]], name)
    else:
        run([python, "-m", "pip", "install", "-q", *arguments, *packages], name)
    with open(stamp, "w", encoding="utf-8") as f:
        f.write(wanted)
    return python


def llama_source():
    """The folder with llama.cpp's source in "source", which is fetched on the first call. Raises Unavailable."""
    folder = os.path.join(CACHE, LLAMA_CPP.replace("==", "-"))
    if os.path.exists(os.path.join(folder, "source", "CMakeLists.txt")):
        return folder
    for program in ("cmake", "c++"):
        if not shutil.which(program):
            raise Unavailable(f"llama.cpp: no {program} to build it with")
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    name = LLAMA_CPP.split("==")[0]
    run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", name, "-d", folder, LLAMA_CPP], "llama.cpp")
    inside = "/vendor/llama.cpp/"
    with tarfile.open(glob.glob(os.path.join(folder, "*.tar.gz"))[0]) as archive:
        for member in archive.getmembers():
            if inside in member.name:
                member.name = "source/" + member.name.split(inside, 1)[1]
                archive.extract(member, folder, filter="data")
    return folder


def llama_tool(name):
    """A program of llama.cpp's, which is built on the first call (minutes). Raises Unavailable."""
    folder = llama_source()
    build = os.path.join(folder, "build-tools")
    program = os.path.join(build, "bin", name)
    if os.path.exists(program):
        return program
    print(f"building {name} of {LLAMA_CPP} in {os.path.relpath(build)}", file=sys.stderr, flush=True)
    off = ["BUILD_SHARED_LIBS", "LLAMA_CURL", "LLAMA_OPENSSL", "LLAMA_BUILD_TESTS", "LLAMA_BUILD_EXAMPLES", "LLAMA_BUILD_SERVER"]
    configure = ["cmake", "-S", os.path.join(folder, "source"), "-B", build, "-DCMAKE_BUILD_TYPE=Release", PORTABLE]
    run(configure + [f"-D{o}=OFF" for o in off] + (["-G", "Ninja"] if shutil.which("ninja") else []), "llama.cpp")
    run(["nice", "cmake", "--build", build, "--target", name, "-j", str(os.cpu_count() or 1)], "llama.cpp")
    return program


def libllama():
    """llama.cpp's library, which is built on the first call (minutes). Raises Unavailable."""
    folder = llama_source()
    library, build = os.path.join(folder, "libllama.path"), os.path.join(folder, "build")
    if os.path.exists(library):
        return open(library, encoding="utf-8").read()
    print(f"building llama.cpp of {LLAMA_CPP} in {os.path.relpath(folder)}", file=sys.stderr, flush=True)
    off = ["LLAMA_BUILD_COMMON", "LLAMA_BUILD_TOOLS", "LLAMA_BUILD_TESTS", "LLAMA_BUILD_EXAMPLES", "LLAMA_BUILD_SERVER", "LLAMA_CURL"]
    configure = ["cmake", "-S", os.path.join(folder, "source"), "-B", build, "-DCMAKE_BUILD_TYPE=Release", "-DBUILD_SHARED_LIBS=ON",
                 PORTABLE]
    run(configure + [f"-D{o}=OFF" for o in off] + (["-G", "Ninja"] if shutil.which("ninja") else []), "llama.cpp")
    run(["cmake", "--build", build, "--target", "llama", "-j", str(os.cpu_count() or 1)], "llama.cpp")
    found = sorted(glob.glob(os.path.join(build, "**", "libllama.so"), recursive=True))
    if not found:
        raise Unavailable("llama.cpp: its build left no libllama.so")
    with open(library, "w", encoding="utf-8") as f:
        f.write(found[0])
    return found[0]
