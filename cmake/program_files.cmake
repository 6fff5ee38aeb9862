# Writes the manual page and the completions of PROGRAM, which an emulator may
# precede, below FOLDER, as they are installed below share.
cmake_minimum_required(VERSION 3.21)

function(write_output file)
  cmake_path(GET file PARENT_PATH folder)
  file(MAKE_DIRECTORY "${FOLDER}/${folder}")
  execute_process(
    COMMAND ${PROGRAM} ${ARGN}
    OUTPUT_FILE "${FOLDER}/${file}"
    COMMAND_ERROR_IS_FATAL ANY)
endfunction()

write_output(man/man1/torch-attention.1 man)
write_output(bash-completion/completions/torch-attention completion bash)
write_output(zsh/site-functions/_torch-attention completion zsh)
