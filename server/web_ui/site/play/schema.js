// Fields of a body, from the server's /openapi.json: type, range and description; what a form's text means for them.

const find = (document, reference) =>
  reference.slice(2).split("/").reduce((found, step) => found?.[step], document);

/** The object behind `$ref`, and of `anyOf` with null the other one, with the keywords next to them. */
export function resolved(document, schema) {
  const { $ref, anyOf, ...beside } = schema;
  if ($ref) return resolved(document, { ...find(document, $ref), ...beside });
  const others = (anyOf ?? []).filter((one) => one.type !== "null");
  return others.length === 1 ? resolved(document, { ...others[0], ...beside }) : schema;
}

/** The schema of a POST's body, or null where there is no such route. */
export function bodyOf(document, path) {
  const body = document.paths[path]?.post?.requestBody?.content["application/json"]?.schema;
  return body ? resolved(document, body) : null;
}

/** `{name, type, minimum, exclusiveMinimum, maximum, description}` of each of the `names` that the body has. */
export function fieldsOf(document, path, names) {
  const properties = bodyOf(document, path)?.properties ?? {};
  return names.filter((name) => name in properties).map((name) => {
    const { type, minimum, exclusiveMinimum, maximum, description } = resolved(document, properties[name]);
    return { name, type, minimum, exclusiveMinimum, maximum, description };
  });
}

/** The names of the numbers of a body that have a description. */
export function numbersIn(document, path) {
  const fields = fieldsOf(document, path, Object.keys(bodyOf(document, path)?.properties ?? {}));
  return fields.filter(({ type, description }) => ["number", "integer"].includes(type) && description).map(({ name }) => name);
}

// Bounds that no one comes near are not worth a place in the form.
const near = (bound) => bound !== undefined && Math.abs(bound) < 2 ** 31 - 1;

/** The range in words, as "0 to 2", "over 0, to 1" or "1 or more"; "" where there is none to speak of. */
export function rangeOf({ minimum, exclusiveMinimum, maximum }) {
  const low = near(exclusiveMinimum) ? `over ${exclusiveMinimum}` : near(minimum) ? `${minimum}` : "";
  if (!near(maximum)) return low && (near(exclusiveMinimum) ? low : `${low} or more`);
  if (!low) return `up to ${maximum}`;
  return near(exclusiveMinimum) ? `${low}, to ${maximum}` : `${low} to ${maximum}`;
}

/** `{value}` of a field's text, `{}` for an empty one, or `{problem}`, which names the field and what would be right. */
export function read(field, text) {
  const { name, type, minimum, exclusiveMinimum, maximum } = field;
  const trimmed = String(text ?? "").trim();
  if (trimmed === "") return {};
  if (type === "boolean") return { value: trimmed === "true" };
  if (type === "string") return { value: trimmed };
  const value = Number(trimmed);
  const whole = type === "integer";
  if (!Number.isFinite(value) || (whole && !Number.isInteger(value))) {
    return { problem: `${name} must be a ${whole ? "whole " : ""}number, not ${trimmed}.` };
  }
  if (whole && !Number.isSafeInteger(value)) {
    return { problem: `${name} can be up to ${Number.MAX_SAFE_INTEGER} on this page: browsers round larger numbers.` };
  }
  if (value < minimum || value <= exclusiveMinimum || value > maximum) {
    return { problem: `${name} must be ${rangeOf(field)}, not ${trimmed}.` };
  }
  return { value };
}
