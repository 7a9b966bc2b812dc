package run

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"nightporter/internal/safefile"
	"nightporter/internal/secret"
)

const (
	// transcriptCap is how much of one run is kept: several hours of a busy agent, whose
	// lines average some 2 KB.
	transcriptCap = 64 << 20
	// Transcripts are kept this long, and the newest of them up to this many bytes in all: enough
	// to look into a complaint, not enough to fill a disk.
	transcriptAge   = 30 * 24 * time.Hour
	transcriptTotal = 2 << 30

	// TranscriptSuffix follows a run's id in the name of its transcript.
	TranscriptSuffix = ".jsonl"
)

// transcript keeps what an agent printed, masked, one line per line, in a file of its own, which is made with the first
// line. A nil transcript keeps nothing.
type transcript struct {
	path   string
	file   *os.File // nil before the first line
	masker *secret.Masker
	size   int
	err    error // the first; after it nothing more is written
}

// openTranscript prepares for the transcript of a run in dir. Old transcripts make room for it.
func openTranscript(dir, run string, masker *secret.Masker, now time.Time) (*transcript, error) {
	if err := os.MkdirAll(dir, safefile.DirMode); err != nil {
		return nil, fmt.Errorf("open transcript: %w", err)
	}
	if err := prune(dir, now.Add(-transcriptAge), transcriptTotal); err != nil {
		return nil, fmt.Errorf("remove old transcripts: %w", err)
	}
	return &transcript{path: filepath.Join(dir, run+TranscriptSuffix), masker: masker}, nil
}

// line appends one line, unless the transcript is full or could not be written before.
func (t *transcript) line(line []byte) {
	if t != nil && t.err == nil {
		t.err = t.append(t.masker.Bytes(line))
	}
}

func (t *transcript) append(line []byte) (err error) {
	if t.size += len(line) + 1; t.size > transcriptCap {
		return fmt.Errorf("the transcript ends at %d MiB", transcriptCap>>20)
	}
	if t.file == nil {
		t.file, err = os.OpenFile(t.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, safefile.FileMode)
		if err != nil {
			return fmt.Errorf("open transcript: %w", err)
		}
	}
	// One write per line, so that a crash leaves whole lines.
	if _, err := t.file.Write(append(line[:len(line):len(line)], '\n')); err != nil {
		return fmt.Errorf("write transcript: %w", err)
	}
	return nil
}

// close closes the file and returns the first error of its life.
func (t *transcript) close() error {
	if t == nil {
		return nil
	}
	if t.file == nil {
		return t.err
	}
	return errors.Join(t.err, t.file.Close())
}

// prune removes transcripts that were last written before oldest, and then the oldest of the rest until they take no more
// than total bytes. Other files are left alone, and so is what another process removes meanwhile.
func prune(dir string, oldest time.Time, total int64) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var files []fs.FileInfo
	for _, e := range entries {
		if info, err := e.Info(); err == nil && info.Mode().IsRegular() && strings.HasSuffix(e.Name(), TranscriptSuffix) {
			files = append(files, info)
		}
	}
	slices.SortFunc(files, func(a, b fs.FileInfo) int { return b.ModTime().Compare(a.ModTime()) })
	var sum int64
	for _, f := range files {
		if sum += f.Size(); sum <= total && !f.ModTime().Before(oldest) {
			continue
		}
		if err := os.Remove(filepath.Join(dir, f.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
