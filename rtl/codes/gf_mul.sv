// The matrix of a coefficient times a word in planes (see gf_pkg). Every bit of the product is an
// XOR of 8 ANDs. The module multiplies COLUMNS bytes in parallel.

module gf_mul #(
  parameter int unsigned COLUMNS = gf_pkg::BYTES
) (
  input  gf_pkg::matrix_t          matrix_i,
  input  logic [7:0][COLUMNS-1:0]  planes_i,
  output logic [7:0][COLUMNS-1:0]  product_o
);
  for (genvar j = 0; j < 8; j++) begin : gen_bit
    // Three ANDs fill a 6-input table; the XOR of three such results is in the next one.
    logic [COLUMNS-1:0] low, middle, high;
    assign low    = ({COLUMNS{matrix_i[0][j]}} & planes_i[0]) ^ ({COLUMNS{matrix_i[1][j]}} & planes_i[1])
                  ^ ({COLUMNS{matrix_i[2][j]}} & planes_i[2]);
    assign middle = ({COLUMNS{matrix_i[3][j]}} & planes_i[3]) ^ ({COLUMNS{matrix_i[4][j]}} & planes_i[4])
                  ^ ({COLUMNS{matrix_i[5][j]}} & planes_i[5]);
    assign high   = ({COLUMNS{matrix_i[6][j]}} & planes_i[6]) ^ ({COLUMNS{matrix_i[7][j]}} & planes_i[7]);
    assign product_o[j] = low ^ middle ^ high;
  end
endmodule
