package bench

import (
	"encoding/csv"
	"io"
	"reflect"
	"strconv"
	"strings"
)

// WriteTTA writes runs as CSV: a header with the names that the fields have in JSON, then each run on a line. What is
// null there is empty here; numbers of a list have spaces between them.
func WriteTTA(w io.Writer, rs []TTAResult) error {
	out := csv.NewWriter(w)
	kind := reflect.TypeFor[TTAResult]()
	var row []string
	for i := range kind.NumField() {
		name, _, _ := strings.Cut(kind.Field(i).Tag.Get("json"), ",")
		row = append(row, name)
	}
	out.Write(row)
	for _, r := range rs {
		v := reflect.ValueOf(r)
		for i := range row {
			row[i] = textOf(v.Field(i))
		}
		out.Write(row)
	}
	out.Flush()
	return out.Error()
}

// textOf is the text of one value.
func textOf(v reflect.Value) string {
	switch v.Kind() {
	case reflect.Slice:
		var all []string
		for i := range v.Len() {
			all = append(all, textOf(v.Index(i)))
		}
		return strings.Join(all, " ")
	case reflect.Pointer:
		if v.IsNil() {
			return ""
		}
		return textOf(v.Elem())
	case reflect.Float64:
		return strconv.FormatFloat(v.Float(), 'g', -1, 64)
	case reflect.String:
		return v.String()
	case reflect.Bool:
		return strconv.FormatBool(v.Bool())
	case reflect.Uint64:
		return strconv.FormatUint(v.Uint(), 10)
	}
	return strconv.FormatInt(v.Int(), 10)
}
