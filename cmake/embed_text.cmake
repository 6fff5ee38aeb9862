# Writes the text of FILE to OUTPUT as C++ string literals with commas between:
# pieces, since a literal of more than 65,536 bytes is too long for some
# compilers.
#   cmake -D FILE=... -D OUTPUT=... -P embed_text.cmake
cmake_minimum_required(VERSION 3.21)

set(piece_length 10000)
file(READ "${FILE}" text)
string(LENGTH "${text}" length)
set(literals "")
set(begin 0)
while(begin LESS length)
  string(SUBSTRING "${text}" ${begin} ${piece_length} piece)
  string(APPEND literals "R\"json(${piece})json\",\n")
  math(EXPR begin "${begin} + ${piece_length}")
endwhile()
set(old "")
if(EXISTS "${OUTPUT}")
  file(READ "${OUTPUT}" old)
endif()
# An unchanged file is not written again, so that nothing is compiled again.
if(NOT old STREQUAL literals)
  file(WRITE "${OUTPUT}" "${literals}")
endif()
