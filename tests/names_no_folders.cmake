# The library has no path of a source of the machine that compiled it.
cmake_minimum_required(VERSION 3.21)

foreach(folder ${FOLDERS})
  string(REGEX REPLACE "([][+.*()^$?|\\])" "\\\\\\1" pattern "${folder}")
  file(STRINGS "${LIBRARY}" lines REGEX "${pattern}")
  if(lines)
    list(LENGTH lines count)
    list(GET lines 0 first)
    message(FATAL_ERROR "${LIBRARY} has ${count} paths in ${folder}: ${first}")
  endif()
endforeach()
