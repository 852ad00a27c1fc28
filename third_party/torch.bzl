"""torch_repository: libtorch out of the PyTorch wheel that pip downloads and checks.

The wheel's own copy of the protobuf headers is left out: it is older than the system's and would
shadow it.
"""

def _torch_repository_impl(ctx):
    wheels = ctx.path("wheels")
    done = ctx.execute(
        [
            "python3",
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--require-hashes",
            "--only-binary=:all:",
            "--python-version",
            "3.11",
            "--dest",
            str(wheels),
            "--requirement",
            str(ctx.path(ctx.attr.requirements)),
        ],
        timeout = 1800,
    )
    if done.return_code:
        fail("pip could not download what %s names: %s" % (ctx.attr.requirements, done.stderr))
    for wheel in wheels.readdir():
        done = ctx.execute(["python3", "-m", "zipfile", "-e", str(wheel), "unpacked"], timeout = 600)
        if done.return_code:
            fail("cannot unpack %s: %s" % (wheel, done.stderr))
    ctx.delete("wheels")
    for entry in ctx.path("unpacked/torch/include").readdir():
        if entry.basename != "google":
            ctx.symlink(entry, "include/" + entry.basename)
    for lib in ["libtorch_cpu.so", "libc10.so", "libgomp.so.1"]:
        ctx.symlink("unpacked/torch/lib/" + lib, "lib/" + lib)
    for lib in ctx.path("unpacked/nvidia/cu13/lib").readdir():
        ctx.symlink(lib, "lib/" + lib.basename)
    ctx.symlink(ctx.attr.build_file, "BUILD")

torch_repository = repository_rule(
    implementation = _torch_repository_impl,
    attrs = {
        "build_file": attr.label(mandatory = True),
        "requirements": attr.label(mandatory = True),
    },
)
