// Says why the last attempt was not let in, and leads back to where one was.
const words = {
  "?wrong": "That is not a token or password of this console.",
  "?locked": "Too many wrong ones came. Try again in a minute.",
};
const text = words[location.search];
if (text) {
  const place = document.getElementById("wrong");
  place.textContent = text;
  place.hidden = false;
}
document.querySelector("form").action = `/login${location.hash}`;
