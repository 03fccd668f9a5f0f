//! Messages of others, which may be of any length.

/// Returns the text, or its beginning with an ellipsis, within that many bytes. Doesn't keep the memory
/// of the rest.
pub fn shortened(mut text: String, bytes_max: usize) -> String {
    const ELLIPSIS: char = '…';
    if text.len() > bytes_max {
        let room = bytes_max.saturating_sub(ELLIPSIS.len_utf8());
        text.truncate(text.floor_char_boundary(room));
        text.push(ELLIPSIS);
        text.shrink_to_fit();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_is_cut_between_characters_and_gives_its_memory_back() {
        for (text, max, expected) in [
            ("", 5, ""),
            ("abcde", 5, "abcde"),
            ("abcdef", 5, "ab…"),
            ("äöüäöü", 8, "äö…"),
            ("äöüäöü", 9, "äöü…"),
        ] {
            assert_eq!(shortened(text.to_owned(), max), expected);
        }
        let long = shortened("x".repeat(1 << 20), 4096);
        assert_eq!(long.len(), 4096);
        assert!(long.capacity() < 8192, "{}", long.capacity());
    }
}
