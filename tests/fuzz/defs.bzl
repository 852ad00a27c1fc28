"""Fuzz targets: a parser under LLVMFuzzerTestOneInput, replayed by the tests and driven by libFuzzer."""

def fuzz_target(name, deps):
    """NAME.cc defines LLVMFuzzerTestOneInput; corpus/NAME/ holds inputs that are kept.

    Makes NAME_replay_test (the kept inputs and mutations of them, with any compiler) and NAME, which
    libFuzzer drives (see run.sh; needs --config=fuzz).
    """
    native.cc_library(
        name = name + "_target",
        testonly = 1,
        srcs = [name + ".cc"],
        deps = deps + [":fuzz_target"],
        alwayslink = 1,
    )
    native.cc_test(
        name = name + "_replay_test",
        size = "small",
        srcs = ["replay_test.cc"],
        data = native.glob(["corpus/" + name + "/*"]),
        env = {"REGROUP_CORPUS": "tests/fuzz/corpus/" + name},
        deps = [
            ":" + name + "_target",
            "//third_party:gtest",
        ],
    )
    native.cc_binary(
        name = name,
        testonly = 1,
        linkopts = ["-fsanitize=fuzzer"],
        tags = ["manual"],
        deps = [":" + name + "_target"],
    )
