# The sentences of what it reads, one a line, as KIND, PLACE and SENTENCE between tabs; for hack/sentences.sh.
#
#   kind      help (of one command, on standard input), message (Rust sources) or docs (Markdown)
#   place     of help: the command
#   words_min sentences of fewer words are left out
#
# For every awk: no intervals in expressions, and no order of arrays.

# Prints the sentences of the paragraph so far, and begins the next.
function flush(    end, sentence, words) {
    if (kind == "help")
        gsub(/\[(default|env|aliases|possible values)[^]]*\]/, "", text)
    gsub(/[ \t]+/, " ", text)
    sub(/^ /, "", text)
    sub(/ $/, "", text)
    while (text != "") {
        end = length(text)
        if (match(text, /[.!?][)"*`]* +[A-Z`*[]/))
            end = RSTART + RLENGTH - 3
        sentence = substr(text, 1, end)
        text = substr(text, end + 2)
        if (split(sentence, words, " ") >= words_min && sentence ~ /[a-z]/)
            print kind "\t" where "\t" sentence
    }
}

function add(line) { text = text " " line }

FNR == 1 {
    flush()
    where = kind == "help" ? place : FILENAME
    in_block = in_string = is_over = column = 0
    section = ""
}

# Rows of two columns begin further to the left than the lines that continue them.
kind == "help" {
    if ($0 ~ /^Usage:/ || $0 ~ /^[A-Z][A-Za-z ]*:$/) {
        flush()
        section = $1
        next
    }
    indent = match($0, /[^ ]/) - 1
    is_value = $0 ~ /^ *- [a-z-]+:/
    goes_on = (indent >= 10 || indent == column) && !is_value
    if (!goes_on) {
        flush()
        column = 0
    }
    if (section == "Examples:") {
        if (sub(/^ *# /, ""))
            add($0)
    } else if (is_value) {
        sub(/^ *- [a-z-]+: */, "")
        add($0)
    } else if (goes_on || indent <= 0)
        add($0)
    else if (match($0, /^ +[^ ]+( [^ ]+)*  +/)) {
        column = RLENGTH
        add(substr($0, column + 1))
    }
    next
}

kind == "docs" {
    if ($0 ~ /^ *```/) {
        flush()
        in_block = !in_block
    }
    if (in_block || $0 ~ /^ *```/)
        next
    if ($0 ~ /^ *$/ || $0 ~ /^#/ || $0 ~ /^ *\|/ || $0 ~ /^ *<!--/)
        flush()
    else {
        if (sub(/^ *([-*]|[0-9]+\.) +/, ""))
            flush()
        add($0)
    }
    if ($0 ~ /^(#| *\|)/)
        text = ""
    next
}

# String literals. What is for tests stands at a file's end; reasons of lints are for readers of the code.
/^ *#\[cfg\(test\)\]/ { is_over = 1 }

is_over { next }

{
    line = $0
    sub(/^ +/, "", line)
    before = ""
    while (line != "") {
        if (in_string) {
            if (!match(line, /^([^"\\]|\\.)*"/)) {
                sub(/\\$/, "", line)
                text = text line
                if ($0 !~ /\\$/)
                    text = text " "
                break
            }
            text = text substr(line, 1, RLENGTH - 1)
            line = substr(line, RLENGTH + 1)
            in_string = 0
            if (is_for_readers)
                text = ""
            gsub(/\\n/, " ", text)
            gsub(/\\"/, "\"", text)
            flush()
        } else {
            if (!match(line, /"|\/\/|'"'|'\\"'|r#+"/))
                break
            found = substr(line, RSTART, RLENGTH)
            before = substr(line, 1, RSTART - 1)
            line = substr(line, RSTART + RLENGTH)
            if (found == "//" || found ~ /^r/)
                break
            in_string = found == "\""
            is_for_readers = before ~ /reason = $/
        }
    }
}

END { flush() }
