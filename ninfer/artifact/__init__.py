"""The `.ninfer` v3 artifact: formats, layouts, the exact codec, the directory, reader and writer.

Modules are the API; import from them:

- `formats`   `Format`, `FormatSpec`, `known_format(name)`; `Format.bits_per_weight`, `.is_grouped`, `.is_direct`.
- `layouts`   `Layout`, `layout_for(format)`, `geometry(format, shape) -> Geometry` (planes, row strides, size),
              `encoded_size`, `plane_spans`, `row_view(format, parent_shape, begin, end) -> RowView`.
- `floats`    bf16 as uint16 bits and E4M3FN as uint8: `bf16_to_fp32`, `fp32_to_bf16`, `e4m3_to_fp32`, `fp32_to_e4m3`.
- `codec`     `encode(values, format, name)`, `encode_rows(...) -> EncodedRows` and its `place(geometry, row)`,
              `pack_grouped`, `pack_fp8_rows`, `pack_nvfp4`, `unpack_*`, `decode(data, format, shape)`,
              `decode_rows(read, geometry, begin, end)`, `decode_elements(...)`.
- `directory` the typed model: `Directory`, `Component`, `TensorObject`, `ResourceObject`, `Binding`
              (`WholeBinding | PartsBinding`), `Part`, `Use`, `ActivationPolicy`, `Proposal`, `FileEntry`;
              `Directory.tensor/object/binding/parts/elements`, `tensor_geometry(tensor) -> Geometry`.
- `directory_json`  `parse_directory(json_bytes, where) -> Directory`, `directory_to_json(directory) -> bytes`.
- `planning`  `tensor_object(id, format, shape)`, `resource_object(id, size)`, `place_objects(objects)` (offsets),
              `plan_files(directory, entry, limit)`.
- `reader`    `ArtifactReader.open(path)`: `.directory`, `.tensor`, `.geometry`, `.read_object`, `.read_range`,
              `.source`, `.decode_tensor`, `.decode_parameter`, `.decode_binding`, `.resource(role, component)`.
- `writer`    `ArtifactWriter(path, directory, shard_limit, overwrite, progress)`: `.write(id, offset, data)`,
              `.write_rows(id, row, encoded)`, `.write_object(id, data)`, `.commit()`, `.abort()`; `check_disk_space`.
- `validate`  `validate(data, format, shape, name)`, row-wise `validate_rows`, `validate_gaps`.
- `verify`    `verify(reader, progress) -> VerifyReport` over every object; `check_auxiliary`.
- `summary`   `summarise(directory) -> Summary`: bytes, elements and bits per weight by component and format.

Arrays are NumPy: bf16 as uint16 bit patterns, FP8 and bytes as uint8, decoded values as float32 or int32.
Every refusal is an `ArtifactError` that names the file, and the JSON path, object or parameter.
"""
