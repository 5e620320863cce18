//! The differences between two texts by line, like `diff -u` but with all lines, because a rule is short.

/// Lines of both with ` `, `-` or `+` before them. Nothing if they are the same.
pub fn diff(old: &str, new: &str) -> String {
    if old == new {
        return String::new();
    }
    let (old, new): (Vec<&str>, Vec<&str>) = (old.lines().collect(), new.lines().collect());
    let common = common_lengths(&old, &new);
    let (mut text, mut i, mut j) = (String::new(), 0, 0);
    let mut put = |sign: char, line: &str| text.push_str(&format!("{sign}{line}\n"));
    while i < old.len() || j < new.len() {
        if i < old.len() && j < new.len() && old[i] == new[j] {
            put(' ', old[i]);
            (i, j) = (i + 1, j + 1);
        } else if j == new.len() || i < old.len() && common[i + 1][j] >= common[i][j + 1] {
            put('-', old[i]);
            i += 1;
        } else {
            put('+', new[j]);
            j += 1;
        }
    }
    text
}

/// For each pair of lines, the length of the longest common subsequence of the remaining lines.
fn common_lengths(old: &[&str], new: &[&str]) -> Vec<Vec<u32>> {
    let mut lengths = vec![vec![0; new.len() + 1]; old.len() + 1];
    for i in (0..old.len()).rev() {
        for j in (0..new.len()).rev() {
            lengths[i][j] = match old[i] == new[j] {
                true => lengths[i + 1][j + 1] + 1,
                false => lengths[i + 1][j].max(lengths[i][j + 1]),
            };
        }
    }
    lengths
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_lines_stand_beside_each_other() {
        assert_eq!(diff("a\nb\nc\n", "a\nx\nc\nd\n"), " a\n-b\n+x\n c\n+d\n");
        assert_eq!(diff("", "a"), "+a\n");
        assert_eq!(diff("a", "a"), "");
    }
}
