"""Paths and file systems: plain paths and addresses (``s3://…``) behind one set of functions.

Every function takes a path as text. All raise DataError, naming the path, where the file system refuses.
"""

from sequifier_ray.storage.addresses import (
    ENVIRONMENT,
    SCHEMES,
    address_problem,
    file_system,
    is_local,
    join,
    shown,
)
from sequifier_ray.storage.files import (
    FileEntry,
    copy_file,
    delete_file,
    delete_folder,
    delete_partial,
    exists,
    file_bytes,
    find_files,
    list_names,
    make_folder,
    modified_ns,
    open_file,
    publish_folder,
    read_bytes,
    read_text,
    unpublished,
    write_atomic,
    writing,
)

__all__ = [
    "ENVIRONMENT",
    "FileEntry",
    "SCHEMES",
    "address_problem",
    "copy_file",
    "delete_file",
    "delete_folder",
    "delete_partial",
    "exists",
    "file_bytes",
    "file_system",
    "find_files",
    "is_local",
    "join",
    "list_names",
    "make_folder",
    "modified_ns",
    "open_file",
    "publish_folder",
    "read_bytes",
    "read_text",
    "shown",
    "unpublished",
    "write_atomic",
    "writing",
]
