package coord

import (
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"
)

// docs/monitoring.md has every field of a Status, and no other.
func TestStatusPage(t *testing.T) {
	page, err := os.ReadFile("../docs/monitoring.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(page), "\n## star ctl status --json\n")
	section, _, _ = strings.Cut(section, "\n`star ctl mode PLAN --json`")
	said := map[string]bool{}
	for _, m := range regexp.MustCompile("`\\{([^`]*)`").FindAllStringSubmatch(section, -1) { // {a, b: {…}}
		for _, name := range regexp.MustCompile(`\w+`).FindAllString(m[1], -1) {
			said[name] = true
		}
	}
	for _, m := range regexp.MustCompile("(?m)^\\| (?:… )?(`.*?`) \\|").FindAllStringSubmatch(section, -1) {
		for _, name := range regexp.MustCompile(`\w+`).FindAllString(m[1], -1) {
			said[name] = true
		}
	}
	has := map[string]bool{}
	fields(reflect.TypeFor[Status](), has)
	for name := range has {
		if !regexp.MustCompile("\\b" + name + "\\b").MatchString(section) {
			t.Errorf("docs/monitoring.md does not have %s", name)
		}
	}
	for name := range said {
		if !has[name] {
			t.Errorf("docs/monitoring.md has %s, which a status has not", name)
		}
	}
	if len(said) < 40 {
		t.Errorf("the page has %d fields only", len(said))
	}
}

// fields returns the JSON names of a type's fields and, for types of this package, of their fields.
func fields(of reflect.Type, has map[string]bool) {
	switch of.Kind() {
	case reflect.Pointer, reflect.Slice:
		fields(of.Elem(), has)
	case reflect.Struct:
		for i := range of.NumField() {
			name, _, _ := strings.Cut(of.Field(i).Tag.Get("json"), ",")
			has[name] = true
			if f := of.Field(i).Type; !strings.Contains(f.String(), "runlog.") {
				fields(f, has)
			}
		}
	}
}
