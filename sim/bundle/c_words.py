"""Reserved words, which must not be used as names in a C header."""

__all__ = ["is_taken"]

#: Keywords up to C23 and C++20, alternative operators, and macros of compilers and headers, all in lower case.
_WORDS = frozenset(
    """
    alignas alignof and and_eq asm atomic_cancel auto bitand bitor bool break case catch char class co_await co_return co_yield
    compl concept const const_cast consteval constexpr constinit continue decltype default delete do double dynamic_cast else enum
    errno explicit export extern far false float for fortran friend goto huge if import inline int interrupt linux long main
    module mutable namespace near new noexcept not not_eq null nullptr operator or or_eq private protected public register
    reinterpret_cast requires restrict return short signed sizeof static static_assert static_cast struct switch template this
    thread_local throw true try typedef typeid typename typeof typeof_unqual union unix unsigned using virtual void volatile
    wchar_t while xor xor_eq i386 mips sparc stdin stdout stderr assert offsetof
    """.split()
)


def is_taken(name):
    """Returns True if a lower-case name is a reserved word of C or C++, or has the form `..._t`, which POSIX reserves for
    types."""
    return name in _WORDS or name.endswith("_t")
