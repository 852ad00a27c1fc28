"""cc_grpc_library: C++ messages and gRPC stubs from one .proto, by the system's protoc."""

def cc_grpc_library(name, src, imports = [], deps = [], visibility = None):
    """Makes `name` (a cc_library) from `src`; include it as if the package were the root.

    Args:
      name: the cc_library.
      src: one .proto file, relative to this package, which is also the root of its imports.
      imports: the .proto files that `src` imports, theirs included.
      deps: the cc_grpc_library targets of those files.
      visibility: of the cc_library.
    """
    base = src[:-len(".proto")]
    outs = [base + ending for ending in [".pb.h", ".pb.cc", ".grpc.pb.h", ".grpc.pb.cc"]]
    package = native.package_name()
    native.genrule(
        name = name + "_gen",
        srcs = [src] + imports,
        outs = outs,
        cmd = ("protoc -I{0} --cpp_out=$(GENDIR)/{0} --grpc_out=$(GENDIR)/{0}" +
               " --plugin=protoc-gen-grpc=/usr/bin/grpc_cpp_plugin $(location {1})").format(package, src),
    )
    native.cc_library(
        name = name,
        srcs = [out for out in outs if out.endswith(".cc")],
        hdrs = [out for out in outs if out.endswith(".h")],
        includes = ["."],
        deps = deps + ["//third_party:grpc"],
        visibility = visibility,
    )
