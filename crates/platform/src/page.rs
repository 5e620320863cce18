//! Pages of lists, with ThingsBoard's parameters, JSON and error texts.

use serde::Serialize;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SortDirection {
    #[default]
    Ascending,
    Descending,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sort {
    /// A field of the entity's JSON, such as `createdTime` or `name`.
    pub property: String,
    pub order: SortDirection,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageLink {
    pub page_size: usize,
    /// Starts at 0.
    pub page: usize,
    /// Matches anywhere in name, label or type, ignoring case.
    pub text_search: Option<String>,
    pub sort: Option<Sort>,
}

/// Largest page. Bounds the memory of one request.
pub const PAGE_SIZE_MAX: usize = 10_000;
/// Limit of a text search. SQLite rejects patterns of 50,000 bytes.
pub const TEXT_SEARCH_CHARACTERS_MAX: usize = 1000;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PageError {
    Size(i64),
    Page(i64),
    Order(String),
    Property(String),
    TextSearch,
}

impl std::fmt::Display for PageError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            PageError::Size(size) if *size <= 0 => write!(
                f,
                "Incorrect page link page size '{size}'. Page size must be greater than zero."
            ),
            PageError::Size(size) => write!(
                f,
                "Incorrect page link page size '{size}'. Page size must not be greater than {PAGE_SIZE_MAX}."
            ),
            PageError::Page(page) => write!(f, "Incorrect page link page '{page}'. Page must be positive integer."),
            PageError::Order(order) => {
                write!(
                    f,
                    "Unsupported sort order '{order}'! Only 'ASC' or 'DESC' types are allowed."
                )
            }
            PageError::Property(_) => f.write_str("Invalid sort property"),
            PageError::TextSearch => write!(
                f,
                "Incorrect text search: at most {TEXT_SEARCH_CHARACTERS_MAX} characters are allowed, without NUL."
            ),
        }
    }
}

impl std::error::Error for PageError {}

impl PageLink {
    pub fn new(page_size: usize, page: usize) -> PageLink {
        PageLink {
            page_size,
            page,
            text_search: None,
            sort: None,
        }
    }

    /// Parses the parameters of a request.
    pub fn parse(
        page_size: i64,
        page: i64,
        text_search: Option<&str>,
        sort_property: Option<&str>,
        sort_order: Option<&str>,
    ) -> Result<PageLink, PageError> {
        let size = usize::try_from(page_size).map_err(|_| PageError::Size(page_size))?;
        if size == 0 || size > PAGE_SIZE_MAX {
            return Err(PageError::Size(page_size));
        }
        if let Some(text) = text_search
            && (text.contains('\0') || text.chars().count() > TEXT_SEARCH_CHARACTERS_MAX)
        {
            return Err(PageError::TextSearch);
        }
        let number = usize::try_from(page).map_err(|_| PageError::Page(page))?;
        let property = sort_property.map(str::trim).filter(|property| !property.is_empty());
        let sort = property.map(|property| parse_sort(property, sort_order)).transpose()?;
        Ok(PageLink {
            page_size: size,
            page: number,
            text_search: text_search.filter(|text| !text.is_empty()).map(str::to_owned),
            sort,
        })
    }

    pub(crate) fn offset(&self) -> usize {
        self.page.saturating_mul(self.page_size)
    }
}

fn parse_sort(property: &str, order: Option<&str>) -> Result<Sort, PageError> {
    if !property
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'.')
    {
        return Err(PageError::Property(property.to_owned()));
    }
    let order = match order.unwrap_or("ASC") {
        text if text.eq_ignore_ascii_case("ASC") || text.is_empty() => SortDirection::Ascending,
        text if text.eq_ignore_ascii_case("DESC") => SortDirection::Descending,
        text => return Err(PageError::Order(text.to_owned())),
    };
    Ok(Sort {
        property: property.to_owned(),
        order,
    })
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PageData<T> {
    pub data: Vec<T>,
    pub total_pages: usize,
    pub total_elements: usize,
    pub has_next: bool,
}

impl<T> PageData<T> {
    pub fn new(data: Vec<T>, total_elements: usize, link: &PageLink) -> PageData<T> {
        PageData {
            total_pages: total_elements.div_ceil(link.page_size.max(1)),
            total_elements,
            has_next: link.offset().saturating_add(data.len()) < total_elements,
            data,
        }
    }

    pub fn try_map<U, E>(self, map: impl FnMut(T) -> Result<U, E>) -> Result<PageData<U>, E> {
        Ok(PageData {
            data: self.data.into_iter().map(map).collect::<Result<_, E>>()?,
            total_pages: self.total_pages,
            total_elements: self.total_elements,
            has_next: self.has_next,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_have_thingsboards_texts() {
        let cases = [
            (
                (0, 0, None, None),
                "Incorrect page link page size '0'. Page size must be greater than zero.",
            ),
            (
                (10, -1, None, None),
                "Incorrect page link page '-1'. Page must be positive integer.",
            ),
            (
                (10, 0, Some("name"), Some("UP")),
                "Unsupported sort order 'UP'! Only 'ASC' or 'DESC' types are allowed.",
            ),
            ((10, 0, Some("name; drop"), None), "Invalid sort property"),
        ];
        for ((size, page, property, order), text) in cases {
            let error = PageLink::parse(size, page, None, property, order).unwrap_err();
            assert_eq!(error.to_string(), text);
        }
    }

    #[test]
    fn the_last_page_has_no_next() {
        let link = PageLink::new(2, 1);
        let page = PageData::new(vec![3], 3, &link);
        assert_eq!((page.total_pages, page.has_next), (2, false));
        let json = serde_json::to_string(&page).unwrap();
        assert_eq!(json, r#"{"data":[3],"totalPages":2,"totalElements":3,"hasNext":false}"#);
    }
}
