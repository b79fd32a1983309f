// The compiled half of fmt, built once: Debian packages it as a shared library only, and the header-only form
// doubles the compile time of every file that formats.
#include <fmt/format-inl.h>

template auto fmt::detail::thousands_sep_impl<char>(fmt::detail::locale_ref) -> fmt::detail::thousands_sep_result<char>;
template auto fmt::detail::decimal_point_impl<char>(fmt::detail::locale_ref) -> char;
template auto fmt::detail::dragonbox::to_decimal<float>(float) noexcept -> fmt::detail::dragonbox::decimal_fp<float>;
template auto fmt::detail::dragonbox::to_decimal<double>(double) noexcept -> fmt::detail::dragonbox::decimal_fp<double>;
