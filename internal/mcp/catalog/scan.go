package catalog

// A scanner over JSON that is known to be valid (json.Valid), for what encoding/json cannot do:
// keep the spelling of every number, string and duplicate key. All functions take
// the text and an index in it, and return the index after what they read.

// space returns the index of the first byte from i on that is not white space.
func space(s []byte, i int) int {
	for i < len(s) && (s[i] == ' ' || s[i] == '\n' || s[i] == '\r' || s[i] == '\t') {
		i++
	}
	return i
}

// scalar reads the string, number or word at s[i].
func scalar(s []byte, i int) int {
	if s[i] != '"' {
		for i < len(s) && s[i] > ' ' && s[i] != ',' && s[i] != ']' && s[i] != '}' {
			i++
		}
		return i
	}
	for i++; s[i] != '"'; i++ {
		if s[i] == '\\' {
			i++
		}
	}
	return i + 1
}

// value reads the value at s[i] without looking into it.
func value(s []byte, i int) int {
	depth := 0
	for {
		switch s[i] {
		case '{', '[':
			depth++
			i++
		case '}', ']':
			depth--
			i++
		case ' ', '\n', '\r', '\t', ',', ':':
			i++
			continue
		default:
			i = scalar(s, i)
			// A key's colon is passed by the next turn; at depth 0 there are no keys.
		}
		if depth == 0 {
			return i
		}
	}
}

// object reads the object at s[i]. For each member, member gets the key as it is spelled, with its quotes, and
// the index of the value, and returns the index after the value.
func object(s []byte, i int, member func(key []byte, value int) int) int {
	for i = space(s, i+1); s[i] != '}'; i = space(s, i) {
		if s[i] == ',' {
			i = space(s, i+1)
		}
		end := scalar(s, i)
		key := s[i:end]
		i = member(key, space(s, space(s, end)+1))
	}
	return i + 1
}

// array reads the array at s[i]; element gets the index of each element and returns the index after it.
func array(s []byte, i int, element func(i int) int) int {
	for i = space(s, i+1); s[i] != ']'; i = space(s, i) {
		if s[i] == ',' {
			i = space(s, i+1)
		}
		i = element(i)
	}
	return i + 1
}
