// Our own main: Catch2 2 and 3 have theirs in different places. It cannot use a
// precompiled test.h: Catch2 2 must see CATCH_CONFIG_RUNNER first.

#if __has_include(<catch2/catch_session.hpp>)
#include <catch2/catch_session.hpp>
#else
#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>
#endif

int main(int argc, char* argv[]) {
  return Catch::Session().run(argc, argv);
}
