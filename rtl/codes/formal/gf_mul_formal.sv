// Properties of gf_mul, for a solver and every pair of bytes: products commute; products by one and
// zero are right; the product by two follows from the field's polynomial; a product is zero only if
// a factor is zero.

module gf_mul_formal (
  input  logic [7:0]  x_i,
  input  logic [7:0]  y_i
);
  logic [7:0] xy, yx, x_one, x_zero;

  // One column: plane b is bit b of the byte.
  gf_mul #(.COLUMNS(1)) i_xy (.matrix_i(gf_pkg::matrix(y_i)), .planes_i(x_i), .product_o(xy));
  gf_mul #(.COLUMNS(1)) i_yx (.matrix_i(gf_pkg::matrix(x_i)), .planes_i(y_i), .product_o(yx));
  gf_mul #(.COLUMNS(1)) i_one (.matrix_i(gf_pkg::matrix(8'd1)), .planes_i(x_i), .product_o(x_one));
  gf_mul #(.COLUMNS(1)) i_zero (.matrix_i(gf_pkg::matrix(8'd0)), .planes_i(x_i), .product_o(x_zero));

  always_comb begin
    assert (xy == yx);
    assert (x_one == x_i);
    assert (x_zero == '0);
    assert (y_i != 8'd2 || xy == ({x_i[6:0], 1'b0} ^ (8'h1d & {8{x_i[7]}})));
    assert (xy != '0 || x_i == '0 || y_i == '0);
  end
endmodule
