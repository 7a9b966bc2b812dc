package approval

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strings"
	"testing"
	"time"
)

var deadline = time.Date(2026, 11, 30, 20, 0, 0, 0, time.UTC)

func question() Question {
	return Question{
		Run: "r", Client: "run r", Conversation: "ann", Agent: "claude", Server: "crm", Tool: "delete", Arguments: json.RawMessage(`{ "id": 1.0e400, "n":"<é>" }`),
		Description: "deletes & forgets", Annotations: json.RawMessage(`{"destructiveHint":true}`), Authority: "abc",
	}
}

func write(t *testing.T, q Question, d time.Time) Sheet {
	t.Helper()
	s, err := q.Write(d)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestASheetHasTheCallAndADigestOfItsBytes(t *testing.T) {
	s := write(t, question(), deadline)
	var got map[string]json.RawMessage
	if err := json.Unmarshal(s.JSON, &got); err != nil {
		t.Fatalf("%v: %s", err, s.JSON)
	}
	for member, want := range map[string]string{
		"digest": `"` + s.Digest + `"`, "run": `"r"`, "client": `"run r"`, "conversation": `"ann"`, "agent": `"claude"`, "server": `"crm"`, "tool": `"delete"`,
		"description": `"deletes & forgets"`, "annotations": `{"destructiveHint":true}`, "authority": `"abc"`, "deadline": `"2026-11-30T20:00:00Z"`,
		"arguments": `{ "id": 1.0e400, "n":"<é>" }`,
	} {
		if string(got[member]) != want {
			t.Errorf("%s is %s, want %s", member, got[member], want)
		}
	}
	sum := sha256.Sum256([]byte(strings.TrimSuffix(strings.Replace(string(s.JSON), `"digest":"`+s.Digest+`",`, "", 1), "\n")))
	if hex.EncodeToString(sum[:]) != s.Digest {
		t.Error("the digest is not that of the object without it")
	}
}

func TestEveryQuestionHasADigestOfItsOwn(t *testing.T) {
	seen := map[string]string{write(t, question(), deadline).Digest: "it"}
	for name, change := range map[string]func(*Question){
		"the same again": func(*Question) {}, "arguments": func(q *Question) { q.Arguments = json.RawMessage(`{"id":2}`) },
		"responses": func(q *Question) { q.InputResponses = json.RawMessage(`{"a":1}`) }, "none": func(q *Question) { q.Arguments = nil }, "authority": func(q *Question) { q.Authority = "abd" }, "tool": func(q *Question) { q.Tool = "del" },
	} {
		q := question()
		change(&q)
		s := write(t, q, deadline)
		if other, taken := seen[s.Digest]; taken {
			t.Errorf("%s has the digest of %s", name, other)
		}
		seen[s.Digest] = name
	}
	if _, err := (Question{Arguments: json.RawMessage(`{"a":1},"arguments":{}`)}).Write(deadline); err == nil {
		t.Error("arguments that are no JSON were written")
	}
}

func TestWhatIsNoAnswerToTheQuestionDecidesNothing(t *testing.T) {
	s := Sheet{Digest: "d1"}
	for text, want := range map[string]string{
		``:                                     "not one JSON object",
		`yes`:                                  "not one JSON object",
		`["approve"]`:                          "not one JSON object",
		`{"decision":"approve","digest":"d1"`:  "not one JSON object",
		`{"decision":"approve"}`:               "no digest",
		`{"decision":"approve","digest":"d2"}`: "not that of this question",
		`{"decision":"allow","digest":"d1"}`:   `"allow", which is neither`,
		`{"decision":"Approve","digest":"d1"}`: `"Approve", which is neither`,
		`{"Decision":"approve","digest":"d1"}`: `"Decision", which nothing reads`,
		`{"digest":"d1"}`:                      `"", which is neither`,
		`{"decision":true,"digest":"d1"}`:      "not a text",
		`{"decision":"deny","decision":"approve","digest":"d1"}`:   "two members",
		`{"decision":"approve","digest":"d1","arguments":{"a":1}}`: `"arguments", which nothing reads`,
		`{"decision":"approve","digest":"d1"} {}`:                  "something follows",
		`{"decision":"approve","digest":"d1"} x`:                   "something follows",
	} {
		if a, err := s.ReadAnswer([]byte(text)); err == nil || a.Approved || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %+v, %v", text, a, err)
		}
	}
}

func TestAnAnswerIsRead(t *testing.T) {
	s := Sheet{Digest: "d1"}
	a, err := s.ReadAnswer([]byte(` {"by":"ann","decision":"approve","reason":"fine","digest":"d1"}` + "\n"))
	if err != nil || !a.Approved || a.By != "ann" || a.Reason != "fine" || a.String() != "approved by ann" {
		t.Errorf("%+v, %v", a, err)
	}
	a, err = s.ReadAnswer([]byte(`{"decision":"deny","digest":"d1","by":"` + strings.Repeat("ä", 500) + `"}`))
	if err != nil || a.Approved || a.Reason == "" || len(a.By) > maxBy+3 || !strings.HasSuffix(a.By, "ä…") {
		t.Errorf("%+v, %v", a, err)
	}
}

func FuzzReadAnswer(f *testing.F) {
	for _, seed := range []string{`{"decision":"approve","digest":"d1"}`, `{"decision":"deny","digest":"d1","reason":"x","by":"y"}`, `{"decision":`, `{"a":{}}`, "\xff"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		a, err := Sheet{Digest: "d1"}.ReadAnswer(data)
		if a.Approved && err != nil {
			t.Error("an error approves")
		}
		if !a.Approved {
			return
		}
		var read map[string]string
		if json.Unmarshal(data, &read) != nil || read["decision"] != "approve" || read["digest"] != "d1" {
			t.Errorf("approved by %s", data)
		}
	})
}
