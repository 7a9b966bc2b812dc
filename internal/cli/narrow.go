package cli

import (
	"cmp"
	"reflect"
	"slices"
	"strings"
)

// onlyNamed is the command line with the one command that args name: making the parser of all commands is a fifth of the start of a
// process (docs/decisions/0030). keep takes what was read into flags. It is nil where the first word names none, and where help or the version
// is asked for. What cannot be read by it, whoever reads the whole command line says.
func onlyNamed(flags *commands, args []string) (grammar any, keep func()) {
	asks := func(arg string) bool { return arg == "--help" || arg == "-h" || arg == "--version" }
	if len(args) == 0 || slices.ContainsFunc(args, asks) {
		return nil, nil
	}
	word := args[0]
	if at := slices.IndexFunc(args, func(arg string) bool { return !strings.HasPrefix(arg, "-") }); at > 0 {
		word = args[at] // the value of a flag before the command is no command's name, or is looked for as one in vain
	}
	whole := reflect.ValueOf(flags).Elem()
	var fields []reflect.StructField
	named := false
	for field := range whole.Type().Fields() {
		_, command := field.Tag.Lookup("cmd")
		is := command && cmp.Or(field.Tag.Get("name"), strings.ToLower(field.Name)) == word
		if is || !command && !field.Anonymous {
			fields, named = append(fields, field), named || is
		}
	}
	if !named {
		return nil, nil
	}
	one := reflect.New(reflect.StructOf(fields))
	return one.Interface(), func() {
		for _, field := range fields {
			whole.FieldByName(field.Name).Set(one.Elem().FieldByName(field.Name))
		}
	}
}
