//! A table for people: columns fit their contents, numbers are right-aligned.

/// Longer cells are cut.
const CELL_CHARACTERS_MAX: usize = 60;

pub struct TextTable {
    head: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

impl TextTable {
    pub fn new(head: &[&'static str]) -> TextTable {
        TextTable {
            head: head.to_vec(),
            rows: Vec::new(),
        }
    }

    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells.iter().map(|cell| abridged(cell)).collect());
    }

    pub fn render(&self) -> String {
        let columns = 0..self.head.len();
        let widths: Vec<usize> = columns.clone().map(|column| self.width(column)).collect();
        let is_number: Vec<bool> = columns.map(|column| self.is_number(column)).collect();
        let head: Vec<String> = self.head.iter().map(|&cell| cell.to_owned()).collect();
        let mut text = String::new();
        for row in std::iter::once(&head).chain(&self.rows) {
            let cells = row.iter().zip(&widths).zip(&is_number);
            let line: Vec<String> = cells
                .map(|((cell, &width), is_number)| match is_number {
                    true => format!("{cell:>width$}"),
                    false => format!("{cell:<width$}"),
                })
                .collect();
            text.push_str(line.join("  ").trim_end());
            text.push('\n');
        }
        text
    }

    fn width(&self, column: usize) -> usize {
        let cells = self.rows.iter().map(|row| row[column].chars().count());
        cells.max().unwrap_or(0).max(self.head[column].len())
    }

    fn is_number(&self, column: usize) -> bool {
        let is_number = |cell: &&String| cell.starts_with(|c: char| c.is_ascii_digit());
        let cells = || self.rows.iter().map(|row| &row[column]);
        cells().any(|cell| is_number(&cell)) && cells().all(|cell| is_number(&cell) || cell == "-")
    }
}

/// One line, and not too long.
fn abridged(cell: &str) -> String {
    let line = cell.lines().next().unwrap_or_default();
    match line.char_indices().nth(CELL_CHARACTERS_MAX) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None if line.is_empty() => "-".to_owned(),
        None => line.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let mut table = TextTable::new(&["ID", "N"]);
        table.row(vec!["a".into(), "12".into()]);
        table.row(vec!["long".into(), "3".into()]);
        table.row(vec![String::new(), "4".into()]);
        assert_eq!(table.render(), "ID     N\na     12\nlong   3\n-      4\n");
    }
}
