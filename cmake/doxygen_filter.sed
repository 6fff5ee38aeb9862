# Comments for what every module and every options class has, said once.
/^ *void reset() override;/ i \  /// Makes and registers parameters, buffers and submodules anew.
/^ *void reset_parameters();/ i \  /// Draws the parameters anew, as Python's constructor does.
/^ *void pretty_print(/ i \  /// Prints the class and its options.
/^ *explicit [A-Za-z0-9]*Impl(/ i \  /// Takes its options together.
/^ *[A-Za-z0-9]*AttentionOptions(/ i \  /// Takes the options that have no default.
/^ *[A-Za-z0-9]*AttentionV*[0-9]*\(Wrapper\)*Impl(/ i \  /// Takes the arguments of the Python class.
s|^ *torch::Tensor W_query, W_key, W_value;|  torch::Tensor W_query; ///< (d_in, d_out)\n  torch::Tensor W_key; ///< (d_in, d_out)\n  torch::Tensor W_value; ///< (d_in, d_out)|
/W_query = nullptr;/ i \  /// Projection of the tokens to queries.
/W_key = nullptr;/ i \  /// Projection of the tokens to keys.
/W_value = nullptr;/ i \  /// Projection of the tokens to values.
/Dropout dropout = nullptr;/ i \  /// Dropout of the attention weights.
/^ *torch::Tensor mask;/ i \  /// Buffer (context_length, context_length), 1 above the diagonal.
