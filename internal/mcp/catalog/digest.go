package catalog

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"slices"
	"strings"
	"unicode"
)

type sum = [sha256.Size]byte

// field appends value to an encoding that cannot be read in two ways: its length, then its bytes.
func field[T string | []byte](b []byte, value T) []byte {
	b = binary.BigEndian.AppendUint64(b, uint64(len(value)))
	return append(b, value...)
}

// Digest hashes a JSON value so that neither white space nor the order of an object's members
// matters, and everything else does, the spelling of numbers and strings included: to
// tell 1 from 1.0 too often costs a start, to tell them apart too seldom costs the truth.
// The order of members whose keys some reader takes for the same (repeated, spelled with escapes, in another case) does
// matter: readers take the first or the last of them. A text that is not JSON is hashed as it stands.
func Digest(raw []byte) [sha256.Size]byte {
	if !json.Valid(raw) {
		return sha256.Sum256(append([]byte{'!'}, raw...))
	}
	sum, _ := digestAt(raw, space(raw, 0))
	return sum
}

// digestAt hashes the value at s[i]: objects and arrays from the hashes of what they hold, so that the
// work is linear however deep a value is.
func digestAt(s []byte, i int) (_ sum, end int) {
	switch s[i] {
	case '{':
		type member struct {
			name string // what the key says, without case
			key  []byte // as it is spelled
			sum  sum
		}
		var members []member
		end = object(s, i, func(key []byte, i int) int {
			sum, end := digestAt(s, i)
			members = append(members, member{folded(key), key, sum})
			return end
		})
		slices.SortStableFunc(members, func(a, b member) int { return strings.Compare(a.name, b.name) })
		b := []byte{'{'}
		for _, m := range members {
			b = append(field(b, m.key), m.sum[:]...)
		}
		return sha256.Sum256(b), end
	case '[':
		b := []byte{'['}
		end = array(s, i, func(i int) int {
			sum, end := digestAt(s, i)
			b = append(b, sum[:]...)
			return end
		})
		return sha256.Sum256(b), end
	default:
		end = scalar(s, i)
		return sha256.Sum256(append([]byte{'='}, s[i:end]...)), end
	}
}

// folded returns what a key says, its quotes included, as readers that ignore case compare it (encoding/json does).
func folded(key []byte) string {
	text := string(key)
	if bytes.IndexByte(key, '\\') >= 0 {
		var inner string
		_ = json.Unmarshal(key, &inner) // valid: the whole text is
		text = `"` + inner + `"`
	}
	return strings.Map(func(r rune) rune {
		for next := unicode.SimpleFold(r); ; r, next = next, unicode.SimpleFold(next) {
			if next <= r { // round: it is the first of those that fold together
				return unicode.ToLower(next)
			}
		}
	}, text)
}

// RevisionOf returns the revision of what c offers, 32 hex digits: capabilities, instructions and
// definitions. It does not change with the order in which definitions are listed or with
// the order of members and white space in them, because some servers list from a
// hash map. Who answered and when (ServerInfo, Protocol, FetchedAt, TTL) is not in it.
func RevisionOf(c *Catalog) string {
	b := field(nil, "nightporter catalog revision 1")
	b = field(b, c.Instructions)
	capabilities := Digest(c.Capabilities)
	b = append(b, capabilities[:]...)
	for _, list := range c.lists() {
		sums := make([]sum, len(*list.raws))
		for i, raw := range *list.raws {
			sums[i] = Digest(raw)
		}
		slices.SortFunc(sums, func(a, b sum) int { return bytes.Compare(a[:], b[:]) })
		b = field(b, list.name)
		b = binary.BigEndian.AppendUint64(b, uint64(len(sums)))
		for _, sum := range sums {
			b = append(b, sum[:]...)
		}
	}
	whole := sha256.Sum256(b)
	return hex.EncodeToString(whole[:16])
}
